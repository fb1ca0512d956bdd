// Our CUDA kernels, thread by thread on fibers (blocks.hpp), started by the functions that the
// program calls, against double and against the host's: lengths around warps, blocks and teams, NaN
// and infinite values, in several orders of threads and blocks. Memory is of the exact size, so
// that AddressSanitizer sees what goes beyond it.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/cuda_support.hpp"
#include "fakegpu/blocks.hpp"
#include "fakegpu/fake_gpu.hpp"
#include "kernels/lane_kernels.hpp"
#include "kernels/row_functors.hpp"
#include "trireme/kernels/device_kernels.hpp"
#include "unit/kernels/draw_cases.hpp"

namespace trireme::kernels {
namespace {

constexpr float infinite = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t lengths[] = {1, 31, 32, 33, 255, 256, 257, 1000, 1024, 1025, 2500};

template <class T>
const DeviceRows<T>& rows_of_device() {
  if constexpr (sizeof(T) == sizeof(float)) {
    return device_kernels()->f32;
  } else {
    return device_kernels()->bf16;
  }
}

// Normal ones, and here and there (also in the first place) one that is not finite.
template <class T>
std::vector<T> numbers(int64_t count, unsigned seed, bool finite = true) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<T> out(static_cast<size_t>(count));
  for (T& value : out) value = narrow<T>(normal(random));
  const float odd[] = {nan, infinite, -infinite, 0.f, -0.f, 1e30f, -1e30f};
  for (size_t i = 0; !finite && i < out.size(); i += 37)
    out[i] = narrow<T>(odd[(i / 37 + seed) % std::size(odd)]);
  return out;
}

double at(const auto& values, int64_t i) {
  return static_cast<double>(widen(values[static_cast<size_t>(i)]));
}

template <class T>
void expect_near(const std::vector<T>& got, int64_t i, double expected, double scale = 1) {
  const double value = at(got, i), rounding = (sizeof(T) == sizeof(float) ? 1e-5 : 1e-2) *
                                              std::max(scale, std::abs(expected));
  const bool equal = std::isnan(expected)
                         ? std::isnan(value)
                         : value == expected || std::abs(value - expected) <= rounding;
  EXPECT_TRUE(equal) << value << " for " << expected << " at " << i << " of " << got.size();
}

class DeviceKernelsInBlocks : public testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override {
    enable_device_kernels();
    fakegpu::set_delays({.legacy_us = 0, .others_us = 0});
    fakegpu::set_block_order({.seed = GetParam()});
  }
  void TearDown() override {
    wait();
    set_device_kernels(nullptr);
  }
  static void wait() {
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    ASSERT_THAT(fakegpu::take_findings(), testing::IsEmpty());
  }

  template <class T>
  static void rms_norm(int64_t rows, int64_t columns) {
    std::vector<T> x = numbers<T>(rows * columns, 1);
    const auto weight = numbers<T>(columns, 2), dy = numbers<T>(rows * columns, 3);
    const int64_t chunk_rows = 3, chunks = (rows + chunk_rows - 1) / chunk_rows;
    if (rows > 1) x[static_cast<size_t>(columns - 1)] = narrow<T>(nan);  // of the first row only
    std::vector<T> y(x.size()), dx(x.size());
    std::vector<float> inverse_rms(static_cast<size_t>(rows)),
        dweight(static_cast<size_t>(chunks * columns), 0.f);
    rows_of_device<T>().rms_norm(x.data(), weight.data(), y.data(), inverse_rms.data(), rows,
                                 columns, 1e-5f);
    rows_of_device<T>().rms_norm_backward(x.data(), weight.data(), dy.data(), inverse_rms.data(),
                                          dx.data(), dweight.data(), rows, columns, chunk_rows);
    wait();
    std::vector<double> slopes(dweight.size(), 0.0);
    for (int64_t row = 0; row < rows; ++row) {
      double squares = 0, dot = 0;
      for (int64_t i = 0; i < columns; ++i) {
        const double v = at(x, row * columns + i);
        squares += v * v;
        dot += at(weight, i) * at(dy, row * columns + i) * v;
      }
      const double r = 1 / std::sqrt(squares / static_cast<double>(columns) + 1e-5);
      expect_near(inverse_rms, row, r);
      for (int64_t i = 0; i < columns; ++i) {
        const double v = at(x, row * columns + i), d = at(dy, row * columns + i);
        expect_near(y, row * columns + i, at(weight, i) * v * r, r);
        expect_near(dx, row * columns + i,
                    r * (at(weight, i) * d - v * r * r * dot / static_cast<double>(columns)),
                    4 * r);
        slopes[static_cast<size_t>(row / chunk_rows * columns + i)] += d * v * r;
      }
    }
    for (size_t i = 0; i < slopes.size(); ++i) {
      if (std::isnan(slopes[i])) {
        EXPECT_TRUE(std::isnan(dweight[i])) << i;
      } else {
        EXPECT_NEAR(static_cast<double>(dweight[i]), slopes[i],
                    (sizeof(T) == sizeof(float) ? 1e-4 : 1e-1))
            << i;
      }
    }
  }

  template <class T>
  static void swiglu(int64_t count) {
    const auto gate = numbers<T>(count, 4, false), up = numbers<T>(count, 5),
               dy = numbers<T>(count, 6);
    std::vector<T> y(gate.size()), dgate(gate.size()), dup(gate.size());
    rows_of_device<T>().swiglu(gate.data(), up.data(), y.data(), 1, count, count);
    rows_of_device<T>().swiglu_backward(gate.data(), up.data(), dy.data(), dgate.data(), dup.data(),
                                        count);
    wait();
    for (int64_t i = 0; i < count; ++i) {
      const double g = at(gate, i), u = at(up, i), d = at(dy, i), s = 1 / (1 + std::exp(-g));
      expect_near(y, i, g / (1 + std::exp(-g)) * u);
      expect_near(dgate, i, d * u * s * (1 + g * (1 - s)));
      expect_near(dup, i, d * g * s);
    }
  }

  // By the kernels that take less at a time: the same bits.
  template <class T>
  static void added_norm(int64_t rows, int64_t columns) {
    const auto x = numbers<T>(rows * columns, 21), added = numbers<T>(rows * columns, 22),
               weight = numbers<T>(columns, 23);
    std::vector<T> sum(x.size()), y(x.size()), want(x.size());
    std::vector<float> inverse_rms(static_cast<size_t>(rows));
    rows_of_device<T>().add_rms_norm(x.data(), added.data(), weight.data(), sum.data(), y.data(),
                                     rows, columns, 1e-5f);
    wait();
    for (size_t i = 0; i < x.size(); ++i)
      EXPECT_EQ(widen(sum[i]), widen(narrow<T>(widen(x[i]) + widen(added[i])))) << i;
    rows_of_device<T>().rms_norm(sum.data(), weight.data(), want.data(), inverse_rms.data(), rows,
                                 columns, 1e-5f);
    wait();
    EXPECT_EQ(y, want);
  }

  template <class T>
  static void swiglu_of_rows(int64_t rows, int64_t columns, int64_t apart) {
    const int64_t stride = 2 * columns + apart;
    const auto both = numbers<T>(rows * stride, 24, false);
    std::vector<T> y(static_cast<size_t>(rows * columns)), want(y.size());
    rows_of_device<T>().swiglu(both.data(), both.data() + columns, y.data(), rows, columns, stride);
    for (int64_t row = 0; row < rows; ++row) {
      const T* gate = both.data() + row * stride;
      rows_of_device<T>().swiglu(gate, gate + columns, want.data() + row * columns, 1, columns,
                                 columns);
    }
    wait();
    for (int64_t i = 0; i < rows * columns; ++i)
      EXPECT_TRUE(at(y, i) == at(want, i) || std::isnan(at(want, i))) << i;
  }

  template <class T>
  static void kept_rows(int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim,
                        int64_t apart) {
    const int64_t half = head_dim / 2, table = 9, slots = tokens + 2, both = heads + kv_heads,
                  stride = (both + kv_heads) * head_dim + apart;
    const auto qkv = numbers<T>(tokens * stride, 25);
    std::vector<int64_t> positions(static_cast<size_t>(tokens)), slot(positions.size());
    for (int64_t token = 0; token < tokens; ++token) {
      positions[static_cast<size_t>(token)] = token * 5 % table;
      slot[static_cast<size_t>(token)] = slots - 1 - token;
    }
    const auto cos = numbers<float>(table * half, 26), sin = numbers<float>(table * half, 27);
    const T *q = qkv.data(), *k = q + heads * head_dim, *v = k + kv_heads * head_dim;
    std::vector<T> rotated(static_cast<size_t>(tokens * heads * head_dim)),
        keys(static_cast<size_t>(slots * kv_heads * head_dim), narrow<T>(-7)), values = keys, dense;
    for (int64_t token = 0; token < tokens; ++token)
      dense.insert(dense.end(), q + token * stride, q + token * stride + both * head_dim);
    std::vector<T> turned(dense.size());
    rows_of_device<T>().keep_rows({q, k, v, stride, stride, stride, positions.data(), slot.data(),
                                   cos.data(), sin.data(), rotated.data(), keys.data(),
                                   values.data(), tokens, heads, kv_heads, head_dim});
    rows_of_device<T>().rope(dense.data(), positions.data(), cos.data(), sin.data(), turned.data(),
                             tokens, both, head_dim, 1.f);
    wait();
    for (int64_t token = 0; token < tokens; ++token) {
      const auto from = turned.begin() + token * both * head_dim, to_q = from + heads * head_dim;
      const int64_t at_slot = slot[static_cast<size_t>(token)] * kv_heads * head_dim;
      EXPECT_TRUE(std::equal(from, to_q, rotated.begin() + token * heads * head_dim));
      EXPECT_TRUE(std::equal(to_q, to_q + kv_heads * head_dim, keys.begin() + at_slot));
      EXPECT_TRUE(std::equal(v + token * stride, v + token * stride + kv_heads * head_dim,
                             values.begin() + at_slot));
    }
    EXPECT_EQ(std::count(keys.begin(), keys.end(), narrow<T>(-7)), 2 * kv_heads * head_dim);
  }

  template <class T>
  static void rope(int64_t tokens, int64_t heads, int64_t head_dim) {
    const int64_t half = head_dim / 2, table = 9;
    const auto x = numbers<T>(tokens * heads * head_dim, 7, false);
    std::vector<int64_t> positions(static_cast<size_t>(tokens));
    for (size_t token = 0; token < positions.size(); ++token)
      positions[token] = static_cast<int64_t>(token * 5 % table);
    std::vector<float> cos, sin;
    for (int64_t i = 0; i < table * half; ++i) {
      cos.push_back(std::cos(0.3f * static_cast<float>(i)));
      sin.push_back(std::sin(0.3f * static_cast<float>(i)));
    }
    std::vector<T> y(x.size());
    rows_of_device<T>().rope(x.data(), positions.data(), cos.data(), sin.data(), y.data(), tokens,
                             heads, head_dim, -1.f);
    wait();
    for (int64_t pair = 0; pair < tokens * heads * half; ++pair) {
      const int64_t token = pair / half / heads, i = pair % half, low = pair / half * head_dim + i;
      const double c = at(cos, positions[static_cast<size_t>(token)] * half + i),
                   s = -at(sin, positions[static_cast<size_t>(token)] * half + i);
      const double a = at(x, low), b = at(x, low + half);
      expect_near(y, low, a * c - b * s);
      expect_near(y, low + half, b * c + a * s);
    }
  }

  // The bits of the host's pass; a NaN is one.
  template <class T>
  static void adamw(int64_t count) {
    struct Shard {
      std::vector<float> master, moment1, moment2;
      std::vector<T> compute;
    } host{numbers<float>(count, 8), numbers<float>(count, 9), numbers<float>(count, 10),
           numbers<T>(count, 11)};
    for (float& value : host.moment2) value *= value;
    for (size_t i = 0; i < host.compute.size(); i += 2)
      host.compute[i] = narrow<T>(host.master[i]);  // many stay what they are
    Shard device = host;
    const auto gradient = numbers<float>(count, 12, false);
    const auto pointers = [&](Shard& shard) {
      AdamWShard out{.master = shard.master.data(),
                     .moment1 = shard.moment1.data(),
                     .moment2 = shard.moment2.data(),
                     .gradient = gradient.data()};
      out.elements = count;
      if constexpr (sizeof(T) == sizeof(float)) {
        out.compute_fp32 = shard.compute.data();
      } else {
        out.compute_bf16 = shard.compute.data();
      }
      return out;
    };
    const AdamWStep step{.lr = 1e-3, .weight_decay = 0.1, .clip_factor = 0.7, .step = 3};
    const int64_t changed = lane_kernels().shard.adamw(pointers(host), AdamWFactors(step), 0,
                                                       (count + adamw_word - 1) / adamw_word);
    std::vector<int32_t> counts(static_cast<size_t>(device_kernels()->adamw_teams(count)), -1);
    device_kernels()->adamw(pointers(device), step, counts.data());
    wait();
    int64_t differ = 0;
    for (const int32_t of_team : counts) differ += of_team;
    EXPECT_EQ(differ, changed) << count;
    EXPECT_THAT(device.master, testing::Pointwise(testing::NanSensitiveFloatEq(), host.master));
    EXPECT_THAT(device.moment1, testing::Pointwise(testing::NanSensitiveFloatEq(), host.moment1));
    EXPECT_THAT(device.moment2, testing::Pointwise(testing::NanSensitiveFloatEq(), host.moment2));
    for (int64_t i = 0; i < count; ++i)
      EXPECT_TRUE(at(device.compute, i) == at(host.compute, i) || std::isnan(at(host.compute, i)))
          << i;
  }

  template <class T>
  static DrawStep<T> draw(DrawStep<T> step) {
    for (const DrawArguments& a : step.arguments) device_kernels()->draws.summarise(a);
    for (const DrawArguments& a : step.arguments) device_kernels()->draws.choose(a);
    wait();
    return step;
  }
};

TEST_P(DeviceKernelsInBlocks, RmsNorm) {
  for (const int64_t columns : lengths) {
    rms_norm<float>(4, columns);
    rms_norm<uint16_t>(4, columns);
  }
  rms_norm<float>(0, 64);
  rms_norm<uint16_t>(1, 64);
  rms_norm<float>(7, 64);
}

TEST_P(DeviceKernelsInBlocks, SwiGlu) {
  swiglu<float>(0);
  for (const int64_t count : lengths) {
    swiglu<float>(count);
    swiglu<uint16_t>(count);
  }
}

TEST_P(DeviceKernelsInBlocks, Rope) {
  rope<float>(0, 2, 8);
  for (const auto& [tokens, heads, head_dim] :
       {std::tuple{1, 1, 2}, {3, 2, 62}, {3, 2, 64}, {2, 3, 66}, {12, 9, 128}}) {
    rope<float>(tokens, heads, head_dim);
    rope<uint16_t>(tokens, heads, head_dim);
  }
}

TEST_P(DeviceKernelsInBlocks, NormOfASum) {
  for (const int64_t columns : lengths) {
    added_norm<float>(3, columns);
    added_norm<uint16_t>(3, columns);
  }
  added_norm<uint16_t>(0, 64);
}

TEST_P(DeviceKernelsInBlocks, SwiGluOfRowsThatLieApart) {
  for (const auto& [rows, columns, apart] :
       {std::tuple{0, 64, 0}, {1, 96, 0}, {3, 64, 0}, {2, 1023, 0}, {3, 1032, 8}, {2, 2056, 3}}) {
    swiglu_of_rows<float>(rows, columns, apart);
    swiglu_of_rows<uint16_t>(rows, columns, apart);
  }
}

TEST_P(DeviceKernelsInBlocks, KeptRows) {
  for (const auto& [tokens, heads, kv_heads, head_dim] :
       {std::tuple{0, 2, 1, 8}, {1, 1, 1, 2}, {3, 9, 3, 64}, {2, 4, 2, 128}, {2, 3, 1, 320}}) {
    for (const int64_t apart : {0, 3, 8}) {
      kept_rows<float>(tokens, heads, kv_heads, head_dim, apart);
      kept_rows<uint16_t>(tokens, heads, kv_heads, head_dim, apart);
    }
  }
}

TEST_P(DeviceKernelsInBlocks, AdamW) {
  adamw<float>(0);
  for (const int64_t count : lengths) {
    adamw<float>(count);
    adamw<uint16_t>(count);
  }
}

TEST_P(DeviceKernelsInBlocks, SumsOfTheExchange) {
  for (const int64_t count :
       {int64_t{0}, int64_t{1}, int64_t{255}, int64_t{257},
        int64_t{2048 * 256 + 77}}) {  // the last has more than a value per thread
    auto into = numbers<float>(count, 13, false);
    const auto before = into, values = numbers<float>(count, 14);
    ASSERT_EQ(comm::launch_add(into.data(), values.data(), count, nullptr), cudaSuccess);
    wait();
    int64_t wrong = 0;
    for (size_t i = 0; i < into.size(); ++i)
      wrong += !(into[i] == before[i] + values[i] || std::isnan(before[i]));
    EXPECT_EQ(wrong, 0) << count;
  }
}

TEST_P(DeviceKernelsInBlocks, SumsOfTheExchangeInHalfPrecision) {
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{257}, int64_t{2048 * 256 + 77}}) {
    auto into = numbers<float>(count, 15, false);
    const auto before = into, values = numbers<float>(count, 16);
    std::vector<uint16_t> rounded(values.size());
    ASSERT_EQ(comm::launch_round(rounded.data(), values.data(), count, nullptr), cudaSuccess);
    ASSERT_EQ(comm::launch_add(into.data(), rounded.data(), count, nullptr), cudaSuccess);
    wait();
    int64_t wrong = 0;
    for (size_t i = 0; i < into.size(); ++i) {
      wrong += rounded[i] != base::float_to_bf16(values[i]);
      const float sum = before[i] + base::bf16_to_float(rounded[i]);
      wrong += !(into[i] == sum || std::isnan(sum));
    }
    EXPECT_EQ(wrong, 0) << count;
  }
}

TEST_P(DeviceKernelsInBlocks, DrawsAreTheHosts) {
  for (const int64_t ids : {5, 257, 4100}) {
    for (const bool forbid : {false, true}) {
      expect_draws_of_host(draw(DrawStep<float>(ids, 1, forbid, {0.31f, 0.9999999f})));
      expect_draws_of_host(draw(DrawStep<uint16_t>(ids, 3, forbid, {0.77f})));
    }
  }
}

// What a draw from these means is nobody's matter; that it is an id is.
TEST_P(DeviceKernelsInBlocks, DrawsFromWhatIsNotFiniteAreIds) {
  for (const auto& [odd, every] :
       {std::pair{nan, 1u}, {nan, 3u}, {infinite, 3u}, {-infinite, 1u}}) {
    DrawStep<float> step(301, 1, false, {0.9999999f});
    for (size_t i = 0; i < step.own[0].size(); i += every) step.own[0][i] = odd;
    step = draw(std::move(step));
    for (const DrawResult& result : step.results)
      EXPECT_TRUE(result.id >= 0 && result.id < 301) << result.id << " of " << odd;
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, DeviceKernelsInBlocks, testing::Values(1u, 2u));

}  // namespace
}  // namespace trireme::kernels
