// SPDX-License-Identifier: BSD-3-Clause
//
// A program that reads a call of the C++ API from standard input and writes its results to standard
// output, for tests/conformance of the Python package.
//
// Each line of the input is a word with its data: `type float`, `query` and other arrays as the
// number of axes, the extents and the elements, options by name, `statistics lse entropy`, and
// `grad_output` and `grad_lse`, which request gradients instead of results. Each line of the output
// is a name and an array. A refused call exits with 1 and writes the reason to standard error.
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "attnscale/attention.hpp"
#include "attnscale/attention_gradients.hpp"
#include "attnscale/float16.hpp"

namespace {

using attnscale::dense_array;
using attnscale::statistic;

using lines = std::map<std::string, std::string>;

/// Type of a number before it is narrowed to 16 bits, which only float is.
template <class T>
using widest = std::conditional_t<sizeof(T) == 2, float, T>;

/// Reads a number with std::stod, which accepts NaN and infinity; streams do not.
template <class T>
dense_array<T> read_array(const std::string& line) {
  std::istringstream words(line);
  std::size_t n_axes = 0;
  words >> n_axes;
  std::vector<std::size_t> shape(n_axes);
  for (auto& extent : shape) words >> extent;
  auto array = dense_array<T>::from_shape(shape);
  std::string word;
  for (auto& element : array) {
    words >> word;
    if constexpr (std::same_as<T, std::int64_t>)
      element = std::stoll(word);
    else
      element = T(static_cast<widest<T>>(std::stod(word)));
  }
  return array;
}

template <class A>
void write_array(const std::string& name, const A& array) {
  std::printf("%s %zu", name.c_str(), array.dimension());
  for (const auto extent : array.shape()) std::printf(" %zu", static_cast<std::size_t>(extent));
  for (const auto element : array) std::printf(" %.17g", static_cast<double>(element));
  std::printf("\n");
}

attnscale::attention_mask read_mask(const lines& given) {
  if (given.contains("attn_mask:bool")) return read_array<bool>(given.at("attn_mask:bool"));
  if (given.contains("attn_mask:float16"))
    return read_array<attnscale::float16>(given.at("attn_mask:float16"));
  if (given.contains("attn_mask:float")) return read_array<float>(given.at("attn_mask:float"));
  if (given.contains("attn_mask:double")) return read_array<double>(given.at("attn_mask:double"));
  return {};
}

attnscale::normalizer_choice read_normalizer(const std::string& line) {
  namespace n = attnscale::normalizers;
  std::istringstream words(line);
  std::string name, rest;
  words >> name;
  std::getline(words, rest);
  const auto number = [&] { return std::stod(rest); };
  const std::map<std::string, std::function<attnscale::normalizer_choice()>> choices{
      {"softmax_n", [&] { return n::softmax_n(number()); }},
      {"sink", [&] { return n::sink(read_array<double>(rest)); }},
      {"sigmoid", [&] { return n::sigmoid(number()); }},
      {"relu", [] { return n::relu(); }},
      {"softpick", [] { return n::softpick(); }},
      {"entmax", [&] { return n::entmax(number()); }},
      {"top_k", [&] { return n::top_k(std::stoll(rest)); }}};
  return choices.at(name)();
}

attnscale::attention_options read_options(const lines& given) {
  attnscale::attention_options options;
  const auto with = [&](const char* name, const auto& read) {
    if (given.contains(name)) read(given.at(name));
  };
  with("scale", [&](const auto& x) { options.scale = read_array<double>(x); });
  with("law", [&](const auto& x) { options.scale = x; });
  with("softcap", [&](const auto& x) { options.softcap = std::stod(x); });
  with("normalizer", [&](const auto& x) { options.normalizer = read_normalizer(x); });
  with("key_lengths", [&](const auto& x) { options.key_lengths = read_array<std::int64_t>(x); });
  with("document_ids", [&](const auto& x) { options.document_ids = read_array<std::int64_t>(x); });
  with("distance_scale", [&](const auto& x) { options.distance_scale = read_array<double>(x); });
  with("distance_bias", [&](const auto& x) { options.distance_bias = read_array<double>(x); });
  with("left", [&](const auto& x) { options.window.left = std::stoll(x); });
  with("right", [&](const auto& x) { options.window.right = std::stoll(x); });
  with("causal", [&](const auto& x) {
    const bool last = x == "bottom_right";
    options.causal =
        last ? attnscale::causal_alignment::bottom_right : attnscale::causal_alignment::offset;
    if (!last) options.causal_offset = std::stoll(x);
  });
  with("qk_norm", [&](const auto& x) {
    options.qk_norm = x == "l2" ? attnscale::row_norm::l2 : attnscale::row_norm::rms;
  });
  options.is_causal = given.contains("is_causal");
  options.enable_gqa = given.contains("enable_gqa");
  options.attn_mask = read_mask(given);
  return options;
}

/// Writes the results that are present.
template <class Result>
void write_statistics(const Result& found) {
  attnscale::for_each_statistic(found, [](statistic which, const auto& array) {
    if (array) write_array(std::string(attnscale::name_of(which)), *array);
  });
}

attnscale::statistic_gradients read_cotangents(const lines& given) {
  attnscale::statistic_gradients of;
  const auto read = [&](const char* name, auto& rows) {
    if (given.contains(name)) rows = read_array<double>(given.at(name));
  };
  read("grad_lse", of.lse);
  read("grad_entropy", of.entropy);
  read("grad_max_score", of.max_score);
  read("grad_mean_score", of.mean_score);
  read("grad_score_variance", of.score_variance);
  read("grad_concentration", of.concentration);
  read("grad_max_weight", of.max_weight);
  read("grad_renyi2", of.renyi2);
  return of;
}

template <class Result>
void write_gradients(const Result& found, const attnscale::attention_options& options) {
  write_array("query", found.query);
  write_array("key", found.key);
  if (options.scale.numbers()) write_array("scale", found.scale);
  const auto write = [](const char* name, const auto& array) {
    if (array) write_array(name, *array);
  };
  write("logits", found.sink);
  write("bias", found.bias);
  write("attn_mask", found.attn_mask);
  write("distance_scale", found.distance_scale);
  write("distance_bias", found.distance_bias);
  if (found.alpha) write_array("alpha", dense_array<double>(*found.alpha));
}

template <class T>
void differentiate(const lines& given, const attnscale::attention_options& options) {
  const auto query = read_array<T>(given.at("query")), key = read_array<T>(given.at("key"));
  const auto of = read_cotangents(given);
  const attnscale::wanted_gradients wanted{true, true, true};
  if (!given.contains("value")) {
    write_gradients(attention_gradients(query, key, options, of, nullptr, wanted), options);
    return;
  }
  const auto value = read_array<T>(given.at("value"));
  const auto grad = read_array<T>(given.at("grad_output"));
  const auto found = attention_gradients(query, key, value, grad, options, of, nullptr, wanted);
  write_gradients(found, options);
  write_array("value", found.value);
}

template <class T>
void attend(const lines& given, const attnscale::attention_options& options) {
  const auto query = read_array<T>(given.at("query")), key = read_array<T>(given.at("key"));
  std::istringstream names(given.at("statistics"));
  attnscale::statistic_set asked{};
  for (std::string name; names >> name;)
    asked = asked | attnscale::statistic_set{attnscale::statistic_named(name)};
  if (!given.contains("value")) {
    write_statistics(attention_statistics(query, key, options, asked));
    return;
  }
  const auto value = read_array<T>(given.at("value"));
  const auto found = attention_statistics(query, key, value, options, asked);
  write_statistics(found);
  write_array("output", *found.output);
}

template <class T>
void answer(const lines& given) {
  const auto options = read_options(given);
  given.contains("statistics") ? attend<T>(given, options) : differentiate<T>(given, options);
}

}  // namespace

int main() try {
  lines given;
  for (std::string name, rest; std::cin >> name && std::getline(std::cin, rest);)
    given[name] = rest.empty() ? rest : rest.substr(1);
  const std::map<std::string, void (*)(const lines&)> types{
      {"float", answer<float>},
      {"double", answer<double>},
      {"float16", answer<attnscale::float16>},
      {"bfloat16", answer<attnscale::bfloat16>}};
  types.at(given.at("type"))(given);
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
