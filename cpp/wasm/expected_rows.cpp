// SPDX-License-Identifier: BSD-3-Clause
//
// The quadrature of attnscale.theory (python/attnscale/theory/_rows.py has the formulas and the
// reasons for the ends of panels). A value of u is a pair (a, v) with u = a - beta s(v).
#include "expected_rows.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numbers>
#include <vector>

#include "attnscale/detail/refuse.hpp"

namespace attnscale::wasm {
namespace {

using numbers = std::vector<double>;

// Gauss-Legendre rule of 8 nodes on (-1, 1): Abramowitz and Stegun, table 25.4.
constexpr std::array<double, 4> half_nodes{0.1834346424956498, 0.5255324099163290,
                                           0.7966664774136267, 0.9602898564975363};
constexpr std::array<double, 4> half_weights{0.3626837833783620, 0.3137066458778873,
                                             0.2223810344533745, 0.1012285362903763};

constexpr double breaks[] = {3.7, 2.8, 1.9, 1.0, 0.0, -1.2, -3.0, -6.0};
constexpr double levels[] = {-24, -18, -13, -9, -6, -4, -2.4, -1.1, 0, 0.8, 1.5, 2.2, 2.9, 3.5};
constexpr double near_end[] = {50, 24, 11, 5, 2, 0.6, 0.1};
constexpr double at_end = 5e-14, neglected = 30, largest_beta = 1e60;

/// Calls visit(node, weight) for the nodes of each panel between neighbouring ends.
template <class Visit>
void for_each_node(const numbers& ends, Visit visit) {
  for (std::size_t i = 0; i + 1 < ends.size(); ++i) {
    const double half = (ends[i + 1] - ends[i]) / 2, middle = ends[i] + half;
    for (std::size_t j = 0; j < half_nodes.size(); ++j) {
      visit(middle - half * half_nodes[j], half * half_weights[j]);
      visit(middle + half * half_nodes[j], half * half_weights[j]);
    }
  }
}

void sort_unique(numbers& x) {
  std::sort(x.begin(), x.end());
  x.erase(std::unique(x.begin(), x.end()), x.end());
}

/// Density of a score: s = sqrt(d) tanh v on the sphere, where v has the density sech(v)^(d - 1); s
/// = v for normal scores.
class density {
 public:
  explicit density(int head_dim)
      : sphere_(head_dim > 0), slope_(head_dim - 1), half_(std::sqrt(head_dim)) {}

  double score(double v) const { return sphere_ ? half_ * std::tanh(v) : v; }
  double score_slope(double v) const { return sphere_ ? half_ / std::pow(std::cosh(v), 2) : 1; }
  double log_density(double v) const {
    return sphere_ ? -slope_ * (v + std::log(0.5 + 0.5 * std::exp(-2 * v))) : -0.5 * v * v;
  }
  /// s(v + step) - s(v), and its inverse, to full relative accuracy.
  double rise(double v, double step) const {
    if (!sphere_) return step;
    const double q = std::exp(-2 * v), shrink = std::exp(-2 * step);
    return 2 * half_ * q / (1 + q) * (-std::expm1(-2 * step) / (1 + q * shrink));
  }
  double step(double v, double rise) const {
    if (!sphere_) return rise;
    const double part = rise / half_;
    const double tangent = part / (std::pow(std::cosh(v), -2) - part * std::tanh(v));
    return std::fabs(tangent) < 1 ? std::atanh(tangent) : std::copysign(INFINITY, rise);
  }
  /// Half width of the range of v in which beta s changes.
  double span(double beta) const {
    return sphere_ ? 0.5 * std::log1p(2 * beta * half_ / at_end) : INFINITY;
  }
  void add_bends(double beta, numbers& to) const {
    if (!sphere_) return;
    for (const double each : near_end)
      if (const double v = 0.5 * std::log(2 * beta * half_ / each); v > 0.2)
        to.insert(to.end(), {-v, v});
  }
  numbers panels(double log_n, double beta) const {
    if (!sphere_) {
      const double top = std::sqrt(2 * (log_n + neglected)) + 1;
      return spread(
          top, [](double v) { return std::min(1.5, 10 / (1 + v)); }, 8.5,
          [](double) { return 1.5; });
    }
    const auto width = [this](double v) {
      return std::min(
          {1.5 * std::cosh(v) / std::sqrt(slope_), 10 / (slope_ * std::tanh(v) + 1e-300), 3.5});
    };
    const double end = span(beta) + 36 / slope_;
    return spread(std::min(end, reach(log_n + neglected)), width, std::min(end, reach(36)), width);
  }

 private:
  /// v with (d - 1) ln cosh v = log_mass.
  double reach(double log_mass) const {
    const double part = log_mass / slope_;
    return part < 300 ? std::acosh(std::exp(part)) : part + std::numbers::ln2;
  }
  template <class Up, class Down>
  static numbers spread(double top, Up up, double bottom, Down down) {
    numbers found{0};
    for (double v = 0; v < bottom;) found.push_back(-(v += down(v)));
    for (double v = 0; v < top;) found.push_back(v += up(v));
    std::sort(found.begin(), found.end());
    return found;
  }

  bool sphere_;
  double slope_, half_;
};

/// ln f, and the averages of x^i e^(jx) exp(-e^x) over one score.
struct moments {
  double log_f = 0, e1 = 0, x_e1 = 0, e2 = 0;
};

class row {
 public:
  row(double n, double beta, int head_dim) : n_(n), beta_(beta), density_(head_dim) {
    panels_ = density_.panels(std::log(n), beta);
    const double low = panels_.front(), high = panels_.back();
    numbers halves = panels_;
    for (std::size_t i = 0; i + 1 < panels_.size(); ++i)
      halves.push_back((panels_[i] + panels_[i + 1]) / 2);
    sort_unique(halves);
    for_each_node(halves,
                  [&](double v, double w) { norm_ += w * std::exp(density_.log_density(v)); });
    numbers bends;
    density_.add_bends(beta, bends);
    for (const double v : bends) panels_.push_back(std::clamp(v, low, high));
    sort_unique(panels_);
    breaks_.assign(std::begin(breaks), std::end(breaks));
    while (breaks_.back() > -std::log(n) - 28) breaks_.push_back(1.7 * breaks_.back());
  }

  row_averages averages() {
    numbers line = panels_;
    const double span = density_.span(beta_);
    for (double& v : line) v = std::clamp(v, -span, span);
    sort_unique(line);
    const double top = line.back(), bottom = line.front();
    numbers below(12), falling(line.rbegin(), line.rend());
    for (int i = 0; i < 12; ++i) below[i] = (breaks_.back() - 2) * (11 - i) / 11.0;
    // All scores below the transition of exp(-e^x), then those that it crosses, then all above.
    stretch(below, [&](double a) { return point{a, top, 1}; });
    stretch(falling, [&](double v) { return point{0, v, beta_ * density_.score_slope(v)}; });
    stretch({0.0, 1.0, 2.0, 3.5}, [&](double a) { return point{a, bottom, 1}; });
    return {-std::numbers::egamma - lse_, -std::numbers::egamma - entropy_, concentration_};
  }

 private:
  struct point {
    double a, v, weight;
  };

  template <class At>
  void stretch(const numbers& line, At at) {
    numbers level;
    for (const double each : line) {
      const point p = at(each);
      level.push_back(std::log(std::max(-average(p).log_f, 1e-320)) + std::log(n_));
    }
    for_each_node(cuts_of(line, level), [&](double x, double w) {
      const point p = at(x);
      const moments m = average(p);
      const double u = p.a - beta_ * density_.score(p.v);
      const double scaled = n_ * w * p.weight * std::exp((n_ - 1) * m.log_f);
      lse_ += scaled * m.e1 * u;
      entropy_ += scaled * m.x_e1;
      concentration_ += scaled * m.e2;
    });
  }

  /// Ends of panels in the part of `line` where `level`, given at its points, is in `levels`.
  static numbers cuts_of(const numbers& line, const numbers& level) {
    const double first = level.front(), last = level.back();
    const double lowest = levels[0], highest = *std::rbegin(levels);
    numbers cuts;
    for (const double each : levels)
      if (first < each && last > each) {
        const auto i = std::upper_bound(level.begin(), level.end(), each) - level.begin();
        const double part = (each - level[i - 1]) / (level[i] - level[i - 1]);
        cuts.push_back(line[i - 1] + part * (line[i] - line[i - 1]));
      }
    if (first > lowest && first < highest) cuts.push_back(line.front());
    if (last > lowest && last < highest) cuts.push_back(line.back());
    sort_unique(cuts);
    // A stretch in which the level hardly changes may still cross several panels of the density.
    numbers walls = line, all = cuts;
    std::sort(walls.begin(), walls.end());
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const auto from = std::lower_bound(walls.begin(), walls.end(), cuts[i]);
      const auto to = std::lower_bound(walls.begin(), walls.end(), cuts[i + 1]);
      if (to - from > 1) all.insert(all.end(), from, to);
    }
    sort_unique(all);
    return all;
  }

  moments average(const point& p) const {
    numbers cuts;
    for (const double wall : panels_) cuts.push_back(wall - p.v);
    const double low = cuts.front(), high = cuts.back();
    for (const double x : breaks_)
      cuts.push_back(std::clamp(density_.step(p.v, (x - p.a) / beta_), low, high));
    std::sort(cuts.begin(), cuts.end());
    moments m;
    double lost = 0, kept = 0;
    for_each_node(cuts, [&](double h, double weight) {
      if (weight == 0) return;
      const double w = weight * std::exp(density_.log_density(p.v + h)) / norm_;
      const double x = p.a + beta_ * density_.rise(p.v, h);
      const double e = std::exp(std::min(x, 50.0)), rest = std::exp(-e);
      lost -= w * std::expm1(-e);
      kept += w * rest;
      m.e1 += w * rest * e;
      m.x_e1 += w * rest * e * x;
      m.e2 += w * rest * e * e;
    });
    m.log_f = lost < 0.5 ? std::log1p(-lost) : std::log(std::max(kept, 1e-300));
    return m;
  }

  double n_, beta_;
  density density_;
  numbers panels_, breaks_;
  double norm_ = 0, lse_ = 0, entropy_ = 0, concentration_ = 0;
};

}  // namespace

row_averages expected_rows(double n, double beta, int head_dim) {
  detail::check_finite_from("n", n, 1);
  detail::check_finite_from("beta", beta, 0);
  if (head_dim != 0) detail::check_at_least("head_dim", head_dim, 2);
  if (n == 1) return {0, 0, 1};
  const double log_n = std::log(n);
  if (beta == 0) return {log_n, log_n, 1 / n};
  row_averages found = row(n, std::min(beta, largest_beta), head_dim).averages();
  found.lse *= std::max(beta / largest_beta, 1.0);
  found.entropy = std::clamp(found.entropy, 0.0, log_n);
  found.concentration = std::clamp(found.concentration, 1 / n, 1.0);
  return found;
}

}  // namespace attnscale::wasm
