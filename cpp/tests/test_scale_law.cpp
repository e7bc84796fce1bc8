// SPDX-License-Identifier: BSD-3-Clause
#include "attnscale/scale_law.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace test_scale_law {

using attnscale::n_means;
using attnscale::scale_law;
namespace laws = attnscale::laws;

TEST_CASE("a law by its type is the law of its spelling") {
  const scale_law by_type = laws::log_n{.base = 1024};
  const auto by_text = scale_law::parse(" log_n( base = 1024 )");
  CHECK(by_type.name() == "log_n");
  CHECK(by_type.spelling() == "log_n(base=1024)");
  CHECK(by_text.spelling() == by_type.spelling());
  CHECK(by_type.meaning() == n_means::visible_keys);
  CHECK(by_type.scale(4096, 64) == doctest::Approx(1.2 / 8));
  CHECK(by_type.multiplier(4096, 64) == by_text.multiplier(4096, 64));
  CHECK(std::get_if<laws::log_n>(&by_text.alternatives())->base == 1024);
}

TEST_CASE("a number is the scale itself") {
  CHECK(scale_law::parse("0.125").scale(10, 7) == 0.125);
  CHECK(scale_law(laws::constant{1e-5}).spelling() == "1e-05");
  CHECK_THROWS_WITH(scale_law::parse("nan"), doctest::Contains("law must be one of 'standard', "));
  CHECK_THROWS_WITH(scale_law::parse("1 +"),
                    "a law is written NAME or NAME(parameter=value, ...), got '1 +'");
}

TEST_CASE("every name makes a law, or says what it needs") {
  CHECK(scale_law::names().size() == 36);
  for (const std::string_view name : scale_law::names()) {
    try {
      const scale_law law = scale_law::parse(name);
      CHECK(law.name() == name);
      CHECK(law.spelling() == name);
      CHECK(std::isfinite(law.scale(100, 64)));
    } catch (const std::invalid_argument& error) {
      const std::string said = error.what();
      CHECK_MESSAGE(said.find("' needs ") != std::string::npos, said);
    }
  }
}

TEST_CASE("whole scales are exact where a law has one") {
  CHECK(scale_law(laws::constant{0.3}).scale(10, 7) == 0.3);
  CHECK(scale_law(laws::unscaled{}).scale(10, 7) == 1);
  CHECK(scale_law(laws::mup{}).scale(10, 7) == 1.0 / 7);
  CHECK(scale_law(laws::standard{}).scale(10, 64) == 0.125);
}

TEST_CASE("a table holds the multipliers of a model") {
  const scale_law law = laws::table{{0, 1, 1.5, 2}, n_means::row_size};
  CHECK(law.meaning() == n_means::row_size);
  CHECK(law.multiplier(2, 64) == 1.5);
  CHECK(law.scale(3, 16) == 0.5);
  CHECK_THROWS_WITH(law.multiplier(4, 64),
                    "n must be a whole number below the 4 multipliers of the table, got 4");
  CHECK_THROWS_AS(law.spelling(), std::logic_error);
  CHECK_THROWS_WITH(scale_law(laws::table{{1, NAN}, n_means::row_size}),
                    "multipliers must be finite, got nan");
}

TEST_CASE("many n at once, all of them or none") {
  const scale_law law = laws::log_n{.base = 2};
  std::vector<double> n{1, 2, 8}, out{-1, -1, -1};
  law.multipliers(n, 4, out);
  CHECK(out == std::vector<double>{0, 1, 3});
  law.scales(n, 4, n);
  CHECK(n == std::vector<double>{0, 0.5, 1.5});
  const std::vector<double> bad{4, 0, 4};
  CHECK_THROWS_WITH(law.multipliers(bad, 4, out), "n must be at least 1, got 0");
  CHECK_THROWS_WITH(
      scale_law(laws::table{{1, 2}}).multipliers(std::vector<double>{1, 9, 1}, 4, out),
      doctest::Contains("got 9"));
  CHECK(out == std::vector<double>{0, 1, 3});
  CHECK_THROWS_WITH(law.scales(bad, 4, {}), "out must have one element for each n, got 0 for 3");
}

TEST_CASE("a law by its name and numbers is the law of its spelling") {
  CHECK(scale_law::parameters("ssmax") == std::vector<std::string_view>{"s", "b", "floor"});
  const double numbers[] = {0.5, 1, 2};
  CHECK(scale_law::of_numbers("ssmax", numbers).spelling() == "ssmax(s=0.5, b=1, floor=2)");
  const double flags[] = {0.1, 128000, 1};
  CHECK(scale_law::of_numbers("inkling_temperature", flags).spelling() ==
        "inkling_temperature(over_head_dim=True)");
  const double open[] = {4, NAN, NAN, NAN, 0.1};
  CHECK(scale_law::of_numbers("yarn", open).spelling() == "yarn(factor=4)");
  CHECK_THROWS_WITH(scale_law::of_numbers("ssmax", open), "law 'ssmax' has 3 parameters, got 5");
  CHECK_THROWS_WITH(scale_law::of_numbers("ssmaks", numbers),
                    doctest::Contains("law must be one of 'standard', "));
  const double missing[] = {NAN};
  CHECK_THROWS_WITH(scale_law::of_numbers("kappa", missing),
                    "law 'kappa' needs kappa: 'kappa(kappa=...)'");
}

TEST_CASE("n of a position is what the law counts there") {
  CHECK(scale_law(laws::log_n{}).n_of_position(9) == 10);
  CHECK(scale_law(laws::grok_temperature{100}).n_of_position(9) == 9);
  CHECK(scale_law(laws::asentmax{1, 1, 1}).n_of_position(9) == 11);
  CHECK_THROWS_WITH(scale_law(laws::critical_scale{}).n_of_position(9),
                    "law 'critical_scale' has no n at a position: its n is the row gaps");
  CHECK_THROWS_WITH(scale_law(laws::log_n{}).n_of_position(-1),
                    "position must be at least 0, got -1");
  CHECK_THROWS_WITH(scale_law(laws::log_n{}).n_of_position(INT64_MAX),
                    "position must be at most 2^53, beyond which float64 skips integers, got "
                    "9223372036854775807");
  CHECK(scale_law(laws::natural_log_n{}).counts());
  CHECK(scale_law(laws::standard{}).counts());
  CHECK_FALSE(scale_law(laws::scale_invariant{}).counts());
  CHECK_FALSE(scale_law(laws::norm_softmax{}).counts());
  CHECK(attnscale::name_of(n_means::query_position_plus_2) == "query position + 2");
}

TEST_CASE("parameters out of range are refused by name") {
  CHECK_THROWS_WITH(scale_law(laws::log_n{.base = 1}), "base must be greater than 1, got 1");
  CHECK_THROWS_WITH(scale_law(laws::kappa{}), "law 'kappa' needs kappa: 'kappa(kappa=...)'");
  CHECK_THROWS_WITH(scale_law(laws::layer_index{1.5}), "layer must be an integer, got 1.5");
  CHECK_THROWS_WITH(scale_law(laws::yarn{.factor = 4, .mscale = -1}),
                    "mscale must be at least 0, got -1");
  CHECK_THROWS_WITH(scale_law(laws::log_n{}).scale(0.5, 64), "n must be at least 1, got 0.5");
  CHECK_THROWS_WITH(scale_law(laws::log_n{}).scale(INFINITY, 64), "n must be finite, got inf");
  CHECK_THROWS_WITH(scale_law(laws::mup{}).scale(NAN, 64), "n must be at least 1, got nan");
  CHECK_THROWS_WITH(scale_law::parse("log_n(base=512, base=3)"),
                    "law 'log_n' must have each parameter once, got 'base' twice");
  CHECK_THROWS_WITH(scale_law(laws::table{{1, 2}, n_means(99)}),
                    "meaning must be an enumerator of its type, from 0 to 9, got 99");
  CHECK_THROWS_WITH(attnscale::name_of(n_means(99)),
                    "meaning must be an enumerator of its type, from 0 to 9, got 99");
}

}  // namespace test_scale_law
