// Online sums of one row against sums over the whole row in double, however the row is cut.
#include "trireme/kernels/log_sum_exp.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "values.hpp"

namespace trireme::test {
namespace {

using kernels::LogSumExp;
using kernels::SoftmaxGradient;

constexpr int64_t longest = 40;

struct Logits {
  const char* name;
  std::vector<float> values;
};

std::vector<Logits> rows() {
  std::vector<Logits> out{{"narrow", normals(1, longest, 1)},
                          {"wide", normals(2, longest, 30)},
                          {"equal", std::vector<float>(longest, 2.5f)}};
  out.push_back({"high", normals(3, longest, 2)});
  for (float& x : out.back().values) x += 1e4f;
  out.push_back({"low", normals(4, longest, 2)});
  for (float& x : out.back().values) x -= 1e4f;
  out.push_back({"rising", {}});
  for (int64_t i = 0; i < longest; ++i) out.back().values.push_back(0.7f * static_cast<float>(i));
  out.push_back(
      {"falling", std::vector<float>(out.back().values.rbegin(), out.back().values.rend())});
  out.push_back({"one above all", normals(5, longest, 1)});
  out.back().values[0] = 1e4f;
  out.push_back({"masked here and there", normals(6, longest, 2)});
  for (size_t i = 1; i < longest; i += 3) out.back().values[i] = -infinity;
  out.push_back({"the first sixteen masked", normals(7, longest, 2)});
  for (size_t i = 0; i < 16; ++i) out.back().values[i] = -infinity;
  return out;
}

struct Exact {
  double log_sum_exp = 0, entropy = 0;
};
// z as the kernel sees it: the product rounded to fp32.
std::vector<double> scaled(const std::vector<float>& logits, int64_t count, float scale) {
  std::vector<double> z;
  for (int64_t i = 0; i < count; ++i)
    z.push_back(static_cast<double>(logits[static_cast<size_t>(i)] * scale));
  return z;
}
Exact exact(const std::vector<double>& z) {
  double max = -HUGE_VAL, sum = 0, mean = 0;
  for (const double x : z) max = std::max(max, x);
  if (max == -HUGE_VAL) return {max, NAN};
  for (const double x : z) sum += std::exp(x - max);
  for (const double x : z) {
    if (x > -HUGE_VAL) mean += std::exp(x - max) / sum * (x - max);
  }
  return {max + std::log(sum), std::log(sum) - mean};
}

template <class T>
LogSumExp run(const std::vector<T>& logits, int64_t count, float scale, int64_t chunk,
              bool with_entropy) {
  LogSumExp row;
  for (int64_t first = 0; first < count; first += chunk) {
    const std::vector<T> alone(
        logits.begin() + first,
        logits.begin() + std::min(first + chunk, count));  // no slack behind it
    const auto n = static_cast<int64_t>(alone.size());
    with_entropy ? update_with_entropy(row, alone.data(), n, scale)
                 : update(row, alone.data(), n, scale);
  }
  return row;
}

template <class T>
void check(const Logits& row, const std::vector<T>& stored, const std::vector<float>& values) {
  for (int64_t count = 1; count <= longest; ++count) {
    for (const float scale : {1.f, 2.f, 0.4f}) {
      const Exact want = exact(scaled(values, count, scale));
      for (const int64_t chunk : {1, 7, 16, 17, 40}) {
        const LogSumExp got = run(stored, count, scale, chunk, true);
        const std::string where = std::string(row.name) + ", " + std::to_string(count) +
                                  " in chunks of " + std::to_string(chunk);
        EXPECT_EQ(got.log_sum_exp(), run(stored, count, scale, chunk, false).log_sum_exp())
            << where;
        if (std::isinf(want.log_sum_exp)) {
          EXPECT_EQ(static_cast<double>(got.log_sum_exp()), want.log_sum_exp) << where;
          continue;
        }
        EXPECT_NEAR(got.log_sum_exp(), want.log_sum_exp, 1e-6 + 6e-8 * std::abs(want.log_sum_exp))
            << where;
        EXPECT_NEAR(got.entropy(), want.entropy, 3e-6) << where;
      }
    }
  }
}

TEST(LogSumExp, EqualsTheSumInDoubleInAnyChunks) {
  for (const Logits& row : rows()) {
    check(row, row.values, row.values);
    const std::vector<uint16_t> bits = to_bf16(row.values);
    std::vector<float> values;
    for (const uint16_t b : bits) values.push_back(from_bf16(b));
    check(row, bits, values);
  }
}

TEST(LogSumExp, ANanAnywhereIsNotHidden) {
  for (int64_t count = 1; count <= longest; ++count) {
    for (int64_t at = 0; at < count; ++at) {
      std::vector<float> logits = normals(8, longest, 2);
      logits[static_cast<size_t>(at)] = std::numeric_limits<float>::quiet_NaN();
      for (const int64_t chunk : {5, 16, 40}) {
        EXPECT_TRUE(std::isnan(run(logits, count, 1, chunk, false).log_sum_exp()))
            << at << " of " << count;
        EXPECT_TRUE(std::isnan(run(logits, count, 1, chunk, true).entropy()))
            << at << " of " << count;
      }
    }
  }
}

TEST(LogSumExp, AnEmptyChunkChangesNothing) {
  const std::vector<float> logits = normals(9, longest, 1);
  LogSumExp row = run(logits, longest, 1, longest, true);
  const LogSumExp before = row;
  update_with_entropy(row, logits.data(), 0, 1);
  EXPECT_EQ(row.log_sum_exp(), before.log_sum_exp());
  EXPECT_EQ(row.entropy(), before.entropy());
}

// d/dx_i of g * -log_sum_exp(scale x) + h * entropy(scale x), by differences.
double slope(std::vector<double> x, size_t i, double scale, double g, double h) {
  const auto loss = [&](double at) {
    x[i] = at;
    std::vector<double> z;
    for (const double value : x) z.push_back(value * scale);
    const Exact row = exact(z);
    return -g * row.log_sum_exp + h * row.entropy;
  };
  const double at = x[i], step = 1e-5;
  if (std::isinf(at)) return 0;
  return (loss(at + step) - loss(at - step)) / (2 * step);
}

template <class T>
void check_gradient(const std::vector<T>& stored, const std::vector<float>& values, int64_t count,
                    float grad_entropy, double tolerance, const std::function<float(T)>& value_of) {
  const float scale = 0.8f, grad = -1.3f;
  const Exact row = exact(scaled(values, count, scale));
  std::vector<T> got(stored.begin(), stored.end());
  const SoftmaxGradient gradient{scale, static_cast<float>(row.log_sum_exp),
                                 static_cast<float>(row.entropy), grad, grad_entropy};
  kernels::softmax_gradient(gradient, got.data(), count);
  const std::vector<double> x(values.begin(), values.begin() + count);
  for (int64_t i = 0; i < count; ++i) {
    const double want = slope(x, static_cast<size_t>(i), static_cast<double>(scale),
                              static_cast<double>(grad), static_cast<double>(grad_entropy));
    EXPECT_NEAR(value_of(got[static_cast<size_t>(i)]), want, 2e-6 + tolerance * std::abs(want))
        << i << " of " << count;
  }
  for (auto i = static_cast<size_t>(count); i < got.size(); ++i)
    EXPECT_EQ(got[i], stored[i]) << "wrote beyond the chunk";
}

TEST(SoftmaxGradient, IsTheSlopeOfLogProbAndEntropy) {
  std::vector<float> masked = normals(12, longest, 2);
  for (size_t i = 2; i < longest; i += 5) masked[i] = -infinity;
  for (const auto& logits : {normals(10, longest, 2), masked}) {
    const std::vector<uint16_t> bits = to_bf16(logits);
    std::vector<float> rounded;
    for (const uint16_t b : bits) rounded.push_back(from_bf16(b));
    for (const int64_t count : {1, 2, 15, 16, 17, 31, 32, 39}) {
      for (const float grad_entropy : {0.f, 0.6f}) {
        check_gradient<float>(logits, logits, count, grad_entropy, 1e-5, [](float x) { return x; });
        check_gradient<uint16_t>(bits, rounded, count, grad_entropy, 0x1p-8, from_bf16);
      }
    }
  }
}

}  // namespace
}  // namespace trireme::test
