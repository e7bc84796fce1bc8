// SPDX-License-Identifier: BSD-3-Clause
//
// Binary interface of XLA's foreign functions, as far as a handler on the CPU needs it. Declared
// here so that the package builds without jaxlib, whose headers contain all of it
// (xla/ffi/api/c_api.h); tests/tensors/test_jax_interface.py compares the two. These declarations
// are the same in versions 0.1 to 0.5 of the interface, those of jaxlib 0.5 to 0.12.
#pragma once

#include <cstddef>
#include <cstdint>

namespace attnscale::bindings::xla {

/// Element types of a buffer.
enum data_type : int {
  boolean = 1,
  int32 = 4,
  int64 = 5,
  uint32 = 8,
  float16 = 10,
  float32 = 11,
  float64 = 12,
  bfloat16 = 16
};

enum error_code : int { invalid_argument = 3, resource_exhausted = 8, internal_error = 13 };

enum attribute_type : int { array_attribute = 1, scalar_attribute = 3, string_attribute = 4 };

/// The only stage in which a handler is called with arrays.
inline constexpr int execute_stage = 3;
/// Extension of a frame that requests the version of a handler.
inline constexpr int metadata_kind = 1;

struct extension {
  std::size_t size;
  int kind;
  extension* next;
};

struct interface_version {
  std::size_t size;
  extension* extensions;
  int major;
  int minor;
};

/// An error of XLA; a handler returns it.
struct error;

struct error_arguments {
  std::size_t size;
  extension* extensions;
  const char* message;
  int code;
};

/// Functions of XLA that a handler may call; more follow.
struct functions {
  std::size_t size;
  extension* extensions;
  interface_version version;
  const void* internal;
  error* (*create_error)(error_arguments*);
};

struct buffer {
  std::size_t size;
  extension* extensions;
  int type;
  void* data;
  std::int64_t rank;
  std::int64_t* extents;
};

/// Arguments or results, which are all buffers.
struct buffers {
  std::size_t size;
  extension* extensions;
  std::int64_t count;
  int* kinds;
  void** items;
};

struct text {
  const char* data;
  std::size_t length;
};

struct scalar {
  int type;
  void* value;
};

struct attributes {
  std::size_t size;
  extension* extensions;
  std::int64_t count;
  int* kinds;
  text** names;
  void** values;
};

struct call_frame {
  std::size_t size;
  extension* extensions;
  const functions* api;
  void* context;
  int stage;
  buffers arguments;
  buffers results;
  attributes options;
};

struct metadata {
  std::size_t size;
  interface_version version;
  std::uint32_t traits;
  std::int64_t state_type;  ///< since version 0.2
};

struct metadata_extension {
  extension base;
  metadata* answer;
};

using handler = error*(call_frame*);

}  // namespace attnscale::bindings::xla
