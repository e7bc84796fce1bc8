// SPDX-License-Identifier: BSD-3-Clause
//
// Scale laws: named rules for the multiplier of q . k from a count n, head_dim and their own
// parameters. Given by type, or by the spelling of Python and the command line:
//
//   const attnscale::scale_law law = attnscale::laws::log_n{.base = 1024};
//   const auto same = attnscale::scale_law::parse("log_n(base=1024)");
//   law.scale(4096, 64);  // ln 4096 / ln 1024 / 8
//
// Laws differ in what n counts as often as in the formula: see scale_law::meaning. A law with a
// model behind it (entropy_invariant, or a fitted one) is a table of multipliers: laws::table. Bad
// input throws std::invalid_argument, which names the parameter, the rule and what was seen.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "attnscale/detail/export.hpp"

namespace attnscale {

/// Meaning of a law's n for a query; the names are those of Python (MEANINGS_OF_N).
enum class n_means : std::uint8_t {
  not_used,               ///< the scale is the same at every length
  visible_keys,           ///< visible keys of the query, after every mask
  row_size,               ///< keys up to the last one that causal, window and key_lengths allow
  query_position,         ///< 0-based index of the key that the query is aligned with
  query_position_plus_1,  ///< 1-based
  query_position_plus_2,
  query_key_distance,  ///< positions between the query and each key: a row has many n
  row_entropy,         ///< measured on the row at the standard scale, in nats
  row_gaps,            ///< sup over t > 0 of ln N(t) / t, N(t) = scores at most t below the top one
  row_spread,          ///< standard deviation of the visible scores, at the standard scale
};

/// Names such as "visible keys", "query position + 1".
ATTNSCALE_EXPORT std::string_view name_of(n_means meaning);

// The laws by type: structs of parameters, in the order of attnscale.laws.names().
namespace laws {

/// NaN: a required parameter before it is given.
inline constexpr double not_given = std::numeric_limits<double>::quiet_NaN();

struct standard {};  ///< 1 / sqrt(head_dim)
struct unscaled {};  ///< 1
struct constant {    ///< value, whatever head_dim is
  double value = not_given;
};
struct mup {};               ///< 1 / head_dim
struct layer_index {         ///< 1 / ((layer + 1) sqrt(head_dim))
  double layer = not_given;  ///< 0-based, whole
};
struct disentangled_scale {  ///< 1 / sqrt(terms * head_dim)
  double terms = not_given;  ///< whole, at least 1
};
struct latent_scale {  ///< sqrt(hidden / rank) / sqrt(head_dim)
  double hidden = not_given, rank = not_given;
};
struct log_n {  ///< ln(max(n, floor)) / ln(base) / sqrt(head_dim)
  double base = 512, floor = 1;
};
struct log_power {  ///< (ln(n) / ln(base))^power / sqrt(head_dim)
  double power = 0.5, base = 4096;
};
struct log_n_from_training {  ///< max(1, ln(n) / ln(train_length)) / sqrt(head_dim)
  double train_length = not_given;
};
struct natural_log_n {};  ///< ln(n) / sqrt(head_dim)
struct kappa {            ///< kappa ln(n) / head_dim
  double kappa = not_given;
};
struct qwen_log_n {  ///< ln(n) / ln(train_length) beyond train_length, else 1; over sqrt(head_dim)
  double train_length = not_given;
};
struct grok_temperature {  ///< log2(n) / log2(length) beyond length, else 1; over sqrt(head_dim)
  double length = not_given;
};
struct ssmax {  ///< (s ln(max(n, floor)) + b) / sqrt(head_dim)
  double s = 0.43, b = 0, floor = 1;
};
struct asentmax {  ///< (delta + beta ln(n)^gamma) / sqrt(head_dim)
  double delta = not_given, beta = not_given, gamma = not_given;
};
struct llama4_temperature {  ///< (1 + a ln(1 + floor(n / floor))) / sqrt(head_dim)
  double a = 0.1, floor = 8192;
};
struct ministral_temperature {  ///< (1 + beta ln(1 + floor(n / length))) / sqrt(head_dim)
  double beta = 0.1, length = 16384;
};
struct beam_temperature {  ///< (1 + n / length)^exponent / sqrt(head_dim)
  double exponent = 0.1, length = 2048;
};
struct inkling_temperature {  ///< (1 + alpha ln(max(1, n / floor))) / sqrt(head_dim), or / head_dim
  double alpha = 0.1, floor = 128000;
  bool over_head_dim = false;
};
struct selective_temperature {  ///< (1 + strength ln(n)) / sqrt(head_dim)
  double strength = not_given;
};
struct nope_temperature {  ///< (1 + slope ln(max(1, n / train_length))) / sqrt(head_dim)
  double slope = not_given, train_length = 2048;
};
/// m^2 / sqrt(head_dim): m = attention_factor if given, else g(factor, mscale) / g(factor,
/// mscale_all_dim) if both are, else g(factor, 1); g(s, a) = slope a ln(s) + 1, 1 for s <= 1.
struct yarn {
  double factor = not_given, attention_factor = not_given, mscale = not_given,
         mscale_all_dim = not_given, slope = 0.1;
};
struct mla_yarn {  ///< (0.1 mscale_all_dim ln(max(1, factor)) + 1)^2 / sqrt(head_dim)
  double factor = not_given, mscale_all_dim = not_given;
};
struct longrope {  ///< (1 + ln(max(1, factor)) / ln(train_length)) / sqrt(head_dim)
  double train_length = not_given, factor = not_given, attention_factor = not_given;
};
struct info_scale {  ///< sqrt((1 - n^(-2/d)) / (1 - train_length^(-2/d))) / sqrt(d), d = head_dim
  double train_length = not_given;
};
struct annealed {  ///< max(least, sqrt(max(0, 1 + 2 ln(n / n0) / variance))) / sqrt(head_dim)
  double n0 = 512, least = 0, variance = 1;
};
struct sparsity_invariant {  ///< max(least, isf(keys / n) / isf(keys / n0)) / sqrt(head_dim)
  double n0 = 512, keys = 1, least = 0;
};
struct variance_invariant {  ///< max(least, sqrt(max(0, 1 + ln(n / n0)))) / sqrt(head_dim)
  double n0 = 512, least = 0;
};
/// max(least, gap - sqrt(max(0, gap^2 - 2 ln(n w / (1 - w))))) / sqrt(head_dim), w = weight
struct retrieval {
  double gap = not_given, weight = 0.5, least = 0;
};
/// sqrt(1 + 2 ln(1 + n / tau)) / sqrt(head_dim), with -2 ln(1 + n / tau) added to the score; n is
/// the distance of query and key
struct scale_invariant {
  double tau = 10;
};
struct critical_scale {};  ///< n / sqrt(head_dim)
struct norm_softmax {      ///< gamma / max(n, least) / sqrt(head_dim)
  double gamma = 1, least = 1e-6;
};
struct qk_norm_scale {  ///< log2(train_length^2 - train_length) / head_dim
  double train_length = not_given;
};
struct swin_v2 {  ///< exp(min(theta, ln(most))) / head_dim
  double theta = 2.302585092994046, most = 100;
};
struct lssa {};  ///< ln(head_dim) ln(n) / head_dim

/// A multiplier of 1 / sqrt(head_dim) for each n from 0 on; larger n are refused.
struct table {
  std::vector<double> multipliers;
  n_means meaning = n_means::visible_keys;
};

}  // namespace laws

namespace detail {

/// Whether L is one of the types of a variant, or the variant itself.
template <class L, class Any>
inline constexpr bool is_law = std::is_same_v<L, Any>;
template <class L, class... Laws>
inline constexpr bool is_law<L, std::variant<Laws...>> = std::is_same_v<L, std::variant<Laws...>> ||
                                                         (std::is_same_v<L, Laws> || ...);

}  // namespace detail

/// A law with its parameters: a value, cheap to copy.
class ATTNSCALE_EXPORT scale_law {
 public:
  using any =
      std::variant<laws::standard, laws::unscaled, laws::constant, laws::mup, laws::layer_index,
                   laws::disentangled_scale, laws::latent_scale, laws::log_n, laws::log_power,
                   laws::log_n_from_training, laws::natural_log_n, laws::kappa, laws::qwen_log_n,
                   laws::grok_temperature, laws::ssmax, laws::asentmax, laws::llama4_temperature,
                   laws::ministral_temperature, laws::beam_temperature, laws::inkling_temperature,
                   laws::selective_temperature, laws::nope_temperature, laws::yarn, laws::mla_yarn,
                   laws::longrope, laws::info_scale, laws::annealed, laws::sparsity_invariant,
                   laws::variance_invariant, laws::retrieval, laws::scale_invariant,
                   laws::critical_scale, laws::norm_softmax, laws::qk_norm_scale, laws::swin_v2,
                   laws::lssa, laws::table>;

  /// A law from its type; refuses parameters out of range, and missing ones.
  template <class L>
  requires detail::is_law<L, any> scale_law(L law) : law_(std::make_shared<any>(std::move(law))) {
    check();
  }

  /// A law from NAME, NAME(parameter=value, ...), or a number, which is the scale: as Python's
  /// Law.spelling.
  static scale_law parse(std::string_view text);

  /// Names that parse knows.
  static std::vector<std::string_view> names();

  /// The law of that name with a number for each of its parameters, in the order of parameters():
  /// NaN for an absent one, 0 or 1 for a flag.
  static scale_law of_numbers(std::string_view name, std::span<const double> numbers);

  /// Parameter names of the law of that name, in the order of its members.
  static std::vector<std::string_view> parameters(std::string_view name);

  std::string_view name() const;
  n_means meaning() const;

  /// The smallest n: 0, 1 or 2. Where n follows from the position alone, also the offset from it.
  std::int64_t least_n() const;

  /// Whether n is a count that a query has before its scores are known, the same for all its keys:
  /// not a distance, and not measured on the row's scores.
  bool counts() const;

  /// Whether it multiplies only the channels that rotary positions rotate, or only those of a
  /// latent.
  bool acts_on_some_channels() const;

  /// Shortest text that parse reads as this law. laws::table has none: throws std::logic_error.
  std::string spelling() const;

  /// Beta: the multiple of 1 / sqrt(head_dim) at n, which is at least 1, or 0 for the meanings that
  /// start there.
  double multiplier(double n, std::int64_t head_dim) const;

  /// The full multiplier of q . k.
  double scale(double n, std::int64_t head_dim) const;

  /// Multipliers at many n, into `out` of the same size. All n are checked before the first is
  /// written; `out` may be `n` itself.
  void multipliers(std::span<const double> n, std::int64_t head_dim, std::span<double> out) const;
  void scales(std::span<const double> n, std::int64_t head_dim, std::span<double> out) const;

  /// n of a causal query at this 0-based position that sees every key up to its own. Refuses laws
  /// whose n is not a count.
  double n_of_position(std::int64_t position) const;

  /// The law by its type: std::get_if<laws::log_n>(&law.alternatives()).
  const any& alternatives() const { return *law_; }

 private:
  void check() const;
  void check(std::span<const double> n, std::int64_t head_dim, std::span<double> out) const;

  std::shared_ptr<const any> law_;
};

/// Refuses a law that is not one scale per row for all channels and keys, known before the scores.
ATTNSCALE_EXPORT void require_one_scale_a_row(const scale_law& law);

}  // namespace attnscale
