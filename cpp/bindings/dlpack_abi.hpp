// SPDX-License-Identifier: BSD-3-Clause
//
// Binary interface through which a tensor library lends its tensors to compiled code: version 1 of
// DLPack with its table of functions, as far as the core needs it. Declared here so that the
// package builds without PyTorch, whose headers contain all of it (ATen/dlpack.h);
// tests/tensors/test_torch_plain.py compares the two.
#pragma once

#include <cstdint>

namespace attnscale::bindings::dlpack {

inline constexpr const char* attribute = "__dlpack_c_exchange_api__";
inline constexpr const char* capsule = "dlpack_exchange_api";
inline constexpr std::uint32_t major_version = 1;

enum device_type : std::int32_t { cpu = 1 };
enum data_code : std::uint8_t { integer = 0, floating = 2, brain_floating = 4, boolean = 6 };

struct data_type {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

/// A tensor whose owner keeps its memory, shape and strides (in elements).
struct tensor {
  void* data;
  std::int32_t device;
  std::int32_t device_index;
  std::int32_t n_axes;
  data_type type;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

struct version {
  std::uint32_t major;
  std::uint32_t minor;
};

struct managed_tensor {
  version made_by;
  void* context;
  void (*deleter)(managed_tensor*);
  std::uint64_t flags;
  tensor described;
};

/// Functions of a tensor library. Functions on Python objects need the GIL, and set a Python error
/// if they return anything but 0.
struct functions {
  version offered;
  functions* earlier;
  int (*allocate)(tensor* prototype, managed_tensor** made, void* context,
                  void (*say)(void* context, const char* kind, const char* message));
  int (*lend_managed)(void* object, managed_tensor** lent);
  int (*to_object)(managed_tensor* given, void** object);  // takes over `given`
  int (*lend)(void* object, tensor* lent);                 // null if not offered
  int (*current_stream)(device_type device, std::int32_t index, void** stream);
};

}  // namespace attnscale::bindings::dlpack
