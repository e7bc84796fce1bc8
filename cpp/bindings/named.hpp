// SPDX-License-Identifier: BSD-3-Clause
//
// Enumerations by their Python names.
#pragma once

#include <stdexcept>
#include <string>

#include "attnscale/types.hpp"

namespace attnscale::bindings {

inline distribution distribution_named(const std::string& name) {
  if (name == "uniform") return distribution::uniform;
  if (name == "normal") return distribution::normal;
  if (name == "truncated_normal") return distribution::truncated_normal;
  if (name == "laplace") return distribution::laplace;
  throw std::invalid_argument("there is no distribution '" + name + "'");
}

inline score_model model_named(const std::string& name) {
  if (name == "sphere") return score_model::sphere;
  if (name == "gaussian") return score_model::gaussian;
  if (name == "correlated") return score_model::correlated;
  throw std::invalid_argument("there is no model '" + name + "'");
}

inline projection_kind projection_named(const std::string& name) {
  if (name == "gaussian") return projection_kind::gaussian;
  if (name == "sign") return projection_kind::sign;
  if (name == "sparse") return projection_kind::sparse;
  throw std::invalid_argument("there is no projection '" + name + "'");
}

}  // namespace attnscale::bindings
