// SPDX-License-Identifier: BSD-3-Clause
//
// Header paths of xtensor, which version 0.26 moved into subdirectories; both layouts work here.
// Before that version two of its partial specializations are ambiguous for its arrays if the
// compiler matches template template arguments by the C++17 rule, as clang++ does from version 19
// on: this header adds a better match before any of its arrays is defined.
#pragma once

#include "attnscale/detail/compiler.hpp"

#if __has_include(<xtensor/containers/xtensor.hpp>)
#include <xtensor/containers/xadapt.hpp>
#include <xtensor/containers/xarray.hpp>
#include <xtensor/containers/xtensor.hpp>
#include <xtensor/core/xexpression.hpp>
#include <xtensor/generators/xbuilder.hpp>
#include <xtensor/views/xstrided_view.hpp>
#include <xtensor/views/xview.hpp>
#else
#include <xtensor/xstorage.hpp>
#if defined(__clang__) && defined(__cpp_template_template_args)
namespace xt {
template <class X, class T>
struct rebind_container<X, svector<T> > {
  using type = svector<X>;
};
}  // namespace xt
#endif
#include <xtensor/xadapt.hpp>
#include <xtensor/xarray.hpp>
#include <xtensor/xbuilder.hpp>
#include <xtensor/xexpression.hpp>
#include <xtensor/xstrided_view.hpp>
#include <xtensor/xtensor.hpp>
#include <xtensor/xview.hpp>
#endif
