// SPDX-License-Identifier: BSD-3-Clause
//
// Training steps on a program's own memory: projections of query, key and value in std::vector,
// which attention and its gradients read and write through xtensor adaptors. The head learns to
// reproduce another head.
#include <attnscale/attention.hpp>
#include <attnscale/attention_gradients.hpp>
#include <cstdio>
#include <random>
#include <vector>

namespace {

constexpr std::size_t n = 64, dim = 8;

using numbers = std::vector<float>;

/// Normal numbers as sums of twelve uniform ones, with variance 1, because the results of
/// std::normal_distribution differ between standard libraries.
numbers normal(std::size_t count, float sigma, std::mt19937& generator) {
  numbers result(count);
  for (float& each : result) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += double(generator()) / double(std::mt19937::max());
    each = sigma * float(sum);
  }
  return result;
}

/// (n, dim) by (dim, dim).
numbers product(const numbers& rows, const numbers& matrix) {
  numbers result(n * dim);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t k = 0; k < dim; ++k)
      for (std::size_t c = 0; c < dim; ++c)
        result[i * dim + c] += rows[i * dim + k] * matrix[k * dim + c];
  return result;
}

/// A head with its weights, and the results kept from its forward pass.
struct head {
  numbers weights[3];  // for query, key and value
  numbers projected[3];

  explicit head(std::mt19937& generator) {
    for (numbers& each : weights) each = normal(dim * dim, 0.5F, generator);
  }

  /// Rows for attention, in the memory of `projected`, without a copy.
  auto rows(std::size_t which) const {
    return xt::adapt(projected[which], std::vector<std::size_t>{n, dim});
  }

  auto forward(const numbers& tokens) {
    for (std::size_t k = 0; k < 3; ++k) projected[k] = product(tokens, weights[k]);
    return attnscale::attention(rows(0), rows(1), rows(2), {.is_causal = true});
  }

  /// Adds -rate times the gradient of the loss: tokens^T times the gradient of the projected rows.
  template <class Rows>
  void update(std::size_t which, const numbers& tokens, const Rows& gradient, float rate) {
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t k = 0; k < dim; ++k)
        for (std::size_t c = 0; c < dim; ++c)
          weights[which][k * dim + c] -= rate * tokens[i * dim + k] * gradient(i, c);
  }
};

}  // namespace

int main() {
  std::mt19937 generator(0);
  const numbers tokens = normal(n * dim, 1, generator);
  head teacher(generator), student(generator);
  const auto wanted = teacher.forward(tokens);
  float first = 0, loss = 0;
  for (int step = 0; step < 1000; ++step) {
    const auto output = student.forward(tokens);
    numbers grad_output(n * dim);
    loss = 0;
    for (std::size_t i = 0; i < n * dim; ++i) {
      const float error = output.flat(i) - wanted.flat(i);
      loss += error * error / float(n * dim);
      grad_output[i] = 2 * error / float(n * dim);
    }
    if (step == 0) first = loss;
    const auto gradients = attnscale::attention_gradients(
        student.rows(0), student.rows(1), student.rows(2),
        xt::adapt(grad_output, std::vector<std::size_t>{n, dim}), {.is_causal = true});
    student.update(0, tokens, gradients.query, 1);
    student.update(1, tokens, gradients.key, 1);
    student.update(2, tokens, gradients.value, 1);
  }
  std::printf("mean squared error of a head in training: %.4f, after 1000 steps %.4f\n", first,
              loss);
  return loss < first / 10 ? 0 : 1;
}
