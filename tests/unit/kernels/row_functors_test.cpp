// The functors that GPUs run, on the host: by one thread, by four that make a team, and by Kokkos'
// host space, against fp64 and against the host's own optimizer pass.
#include "kernels/row_functors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/lane_kernels.hpp"
#include "trireme/kernels/adamw.hpp"
#include "unit/kernels/teams.hpp"

namespace trireme::kernels {
namespace {

template <class T>
std::vector<T> numbers(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<T> out(static_cast<size_t>(count));
  for (T& value : out) value = narrow<T>(normal(random));
  return out;
}

template <class T>
double tolerance() {
  return sizeof(T) == sizeof(float) ? 1e-5 : 1e-2;
}

// |a - b| within the type's rounding of the larger.
template <class T>
void expect_near(T got, double expected) {
  EXPECT_NEAR(static_cast<double>(widen(got)), expected,
              tolerance<T>() * std::max(1.0, std::abs(expected)));
}

double at(const auto& values, int64_t i) {
  return static_cast<double>(widen(values[static_cast<size_t>(i)]));
}

// Elements by 16 bytes at a time, or one by one.
template <class T, class Run>
void check_rms_norm(const Run& run, bool aligned) {
  constexpr int64_t rows = 7, chunk = 3;
  const int64_t columns = aligned ? 48 : 50;
  const auto x = numbers<T>(rows * columns, 1), weight = numbers<T>(columns, 2),
             dy = numbers<T>(rows * columns, 3);
  std::vector<T> y(x.size()), dx(x.size());
  std::vector<float> inverse_rms(rows);
  struct alignas(32) Eight {
    float at[8];
  };
  std::vector<Eight> sums(static_cast<size_t>(3 * columns + 7) / 8, Eight{});
  float* dweight = sums.front().at;
  run(rows, RmsNormRow<T>{x.data(), weight.data(), y.data(), inverse_rms.data(), columns, 1e-5f,
                          aligned});
  run(int64_t{3}, RmsNormBackwardRows<T>{x.data(), weight.data(), dy.data(), inverse_rms.data(),
                                         dx.data(), dweight, rows, columns, chunk, aligned});
  std::vector<double> slope_of_weight(static_cast<size_t>(3 * columns), 0.0);
  for (int64_t row = 0; row < rows; ++row) {
    double squares = 0, dot = 0;
    for (int64_t i = 0; i < columns; ++i) {
      const double v = at(x, row * columns + i);
      squares += v * v;
      dot += at(weight, i) * at(dy, row * columns + i) * v;
    }
    const double r = 1 / std::sqrt(squares / static_cast<double>(columns) + 1e-5);
    for (int64_t i = 0; i < columns; ++i) {
      const double v = at(x, row * columns + i), d = at(dy, row * columns + i);
      expect_near(y[static_cast<size_t>(row * columns + i)], at(weight, i) * v * r);
      expect_near(dx[static_cast<size_t>(row * columns + i)],
                  r * (at(weight, i) * d - v * r * r * dot / static_cast<double>(columns)));
      slope_of_weight[static_cast<size_t>(row / chunk * columns + i)] += d * v * r;
    }
  }
  for (size_t i = 0; i < slope_of_weight.size(); ++i)
    EXPECT_NEAR(static_cast<double>(dweight[i]), slope_of_weight[i], 3 * tolerance<T>());
}

template <class T, class Run>
void check_swiglu(const Run& run, bool aligned) {
  constexpr int64_t count = 2 * range_per_team + 77;
  const auto gate = numbers<T>(count, 4), up = numbers<T>(count, 5), dy = numbers<T>(count, 6);
  std::vector<T> y(gate.size()), dgate(gate.size()), dup(gate.size());
  run(int64_t{3}, SwiGluRange<T>{gate.data(), up.data(), y.data(), count, count, aligned});
  run(int64_t{3}, SwiGluBackwardRange<T>{gate.data(), up.data(), dy.data(), dgate.data(),
                                         dup.data(), count, aligned});
  for (int64_t i = 0; i < count; ++i) {
    const double g = at(gate, i), u = at(up, i), d = at(dy, i), s = 1 / (1 + std::exp(-g));
    expect_near(y[static_cast<size_t>(i)], g * s * u);
    expect_near(dgate[static_cast<size_t>(i)], d * u * s * (1 + g * (1 - s)));
    expect_near(dup[static_cast<size_t>(i)], d * g * s);
  }
}

// The bits of a sum and of its norm.
template <class T, class Run>
void check_added_norm(const Run& run, bool aligned) {
  constexpr int64_t rows = 5;
  const int64_t columns = aligned ? 48 : 50;
  const auto x = numbers<T>(rows * columns, 21), added = numbers<T>(rows * columns, 22),
             weight = numbers<T>(columns, 23);
  std::vector<T> sum(x.size()), y(x.size()), want_sum(x.size()), want(x.size());
  std::vector<float> inverse_rms(rows);
  for (size_t i = 0; i < x.size(); ++i) want_sum[i] = narrow<T>(widen(x[i]) + widen(added[i]));
  run(rows, RmsNormRow<T>{want_sum.data(), weight.data(), want.data(), inverse_rms.data(), columns,
                          1e-5f, aligned});
  run(rows, RmsNormRow<T>{x.data(), weight.data(), y.data(), nullptr, columns, 1e-5f, aligned,
                          added.data(), sum.data()});
  EXPECT_EQ(sum, want_sum);
  EXPECT_EQ(y, want);
}

// Rows that lie apart, as the halves of one product: the bits of each row by itself.
template <class T, class Run>
void check_swiglu_of_rows(const Run& run, bool aligned) {
  constexpr int64_t rows = 3, apart = 16;
  const int64_t columns = range_per_team + (aligned ? 64 : 77), stride = 2 * columns + apart;
  const auto both = numbers<T>(rows * stride, 24);
  std::vector<T> y(static_cast<size_t>(rows * columns)), want(y.size());
  run(2 * rows,
      SwiGluRange<T>{both.data(), both.data() + columns, y.data(), columns, stride, aligned});
  for (int64_t row = 0; row < rows; ++row) {
    const T* gate = both.data() + row * stride;
    run(int64_t{2},
        SwiGluRange<T>{gate, gate + columns, want.data() + row * columns, columns, columns, false});
  }
  EXPECT_EQ(y, want);
}

// The bits of RotateToken; teams of one head, of some, and of more than there are.
template <class T, class Run>
void check_kept_rows(const Run& run, bool aligned) {
  constexpr int64_t tokens = 3, heads = 4, kv_heads = 2, head_dim = 8, half = head_dim / 2,
                    slots = 6;
  const int64_t stride = (heads + 2 * kv_heads) * head_dim + (aligned ? 4 : 5);
  const auto qkv = numbers<T>(tokens * stride, 25);
  const std::vector<int64_t> positions{2, 0, 1}, slot{5, 0, 3};
  std::vector<float> cos, sin;
  for (int64_t i = 0; i < tokens * half; ++i) {
    cos.push_back(std::cos(0.3f * static_cast<float>(i)));
    sin.push_back(std::sin(0.3f * static_cast<float>(i)));
  }
  const T *q = qkv.data(), *k = q + heads * head_dim, *v = k + kv_heads * head_dim;
  for (const int heads_of_team : {1, 3, 20}) {
    std::vector<T> rotated(tokens * heads * head_dim),
        keys(slots * kv_heads * head_dim, narrow<T>(-7)), values = keys;
    const KeepRows<T> functor{
        {q, k, v, stride, stride, stride, positions.data(), slot.data(), cos.data(), sin.data(),
         rotated.data(), keys.data(), values.data(), tokens, heads, kv_heads, head_dim},
        heads_of_team,
        aligned};
    run(tokens * functor.teams_of_token(), functor);
    int64_t untouched = slots;
    for (int64_t token = 0; token < tokens; ++token) {
      std::vector<T> dense(q + token * stride, q + token * stride + (heads + kv_heads) * head_dim),
          turned(dense.size());
      run(int64_t{1}, RotateToken<T>{dense.data(), positions.data() + token, cos.data(), sin.data(),
                                     turned.data(), heads + kv_heads, head_dim, 1.f});
      const auto at = slot[static_cast<size_t>(token)] * kv_heads * head_dim;
      EXPECT_TRUE(std::equal(turned.begin(), turned.begin() + heads * head_dim,
                             rotated.begin() + token * heads * head_dim));
      EXPECT_TRUE(std::equal(turned.begin() + heads * head_dim, turned.end(), keys.begin() + at));
      EXPECT_TRUE(std::equal(v + token * stride, v + token * stride + kv_heads * head_dim,
                             values.begin() + at));
      --untouched;
    }
    EXPECT_EQ(std::count(keys.begin(), keys.end(), narrow<T>(-7)), untouched * kv_heads * head_dim);
  }
}

template <class T, class Run>
void check_rotation(const Run& run) {
  constexpr int64_t tokens = 5, heads = 3, head_dim = 8, half = head_dim / 2;
  const auto x = numbers<T>(tokens * heads * head_dim, 7);
  const std::vector<int64_t> positions{4, 0, 2, 2, 1};
  std::vector<float> cos, sin;
  for (int64_t i = 0; i < tokens * half; ++i) {
    cos.push_back(std::cos(0.3f * static_cast<float>(i)));
    sin.push_back(std::sin(0.3f * static_cast<float>(i)));
  }
  std::vector<T> y(x.size()), back(x.size());
  run(tokens, RotateToken<T>{x.data(), positions.data(), cos.data(), sin.data(), y.data(), heads,
                             head_dim, 1.f});
  run(tokens, RotateToken<T>{y.data(), positions.data(), cos.data(), sin.data(), back.data(), heads,
                             head_dim, -1.f});
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t i = 0; i < half; ++i) {
        const int64_t low = (token * heads + head) * head_dim + i;
        const double angle = 0.3 *
                             static_cast<double>(positions[static_cast<size_t>(token)] * half + i),
                     a = at(x, low), b = at(x, low + half);
        expect_near(y[static_cast<size_t>(low)], a * std::cos(angle) - b * std::sin(angle));
        expect_near(y[static_cast<size_t>(low + half)], b * std::cos(angle) + a * std::sin(angle));
        EXPECT_NEAR(at(back, low), a, 4 * tolerance<T>()) << "turned there and back";
      }
    }
  }
}

// The host's pass is tested against fp64; the functor gives its bits.
template <class T, class Run>
void check_adamw(const Run& run, bool aligned) {
  constexpr int64_t count = range_per_team + 333;
  const AdamWStep step{.lr = 1e-3, .weight_decay = 0.1, .clip_factor = 0.7, .step = 3};
  struct Shard {
    std::vector<float> master = numbers<float>(count, 8), moment1 = numbers<float>(count, 9),
                       moment2 = numbers<float>(count, 10);
    std::vector<T> compute = numbers<T>(count, 11);
  } host, ours;
  for (Shard* shard : {&host, &ours}) {
    for (float& value : shard->moment2) value *= value;
    for (size_t i = 0; i < shard->compute.size(); i += 2)
      shard->compute[i] = narrow<T>(shard->master[i]);  // many stay what they are
  }
  const auto gradient = numbers<float>(count, 12);
  AdamWShard pointers{.master = host.master.data(),
                      .moment1 = host.moment1.data(),
                      .moment2 = host.moment2.data(),
                      .gradient = gradient.data()};
  pointers.elements = count;
  if constexpr (sizeof(T) == sizeof(float)) {
    pointers.compute_fp32 = host.compute.data();
  } else {
    pointers.compute_bf16 = host.compute.data();
  }
  const int64_t changed = adamw(pointers, step);
  const AdamWFactors f(step);
  std::vector<int32_t> counts(2, -1);
  run(int64_t{2},
      AdamWRange<T>{ours.master.data(), ours.moment1.data(), ours.moment2.data(), gradient.data(),
                    ours.compute.data(), counts.data(), count, f.clip, f.decay, f.rate1, f.beta2,
                    f.rate2, f.step_size, f.root_scale, f.eps, aligned});
  EXPECT_EQ(counts[0] + counts[1], changed);
  EXPECT_EQ(ours.master, host.master);
  EXPECT_EQ(ours.moment1, host.moment1);
  EXPECT_EQ(ours.moment2, host.moment2);
  EXPECT_EQ(ours.compute, host.compute);
}

template <class Run>
void check_all(const Run& run) {
  check_rotation<float>(run);
  check_rotation<uint16_t>(run);
  for (const bool aligned : {false, true}) {
    check_rms_norm<float>(run, aligned);
    check_rms_norm<uint16_t>(run, aligned);
    check_swiglu<float>(run, aligned);
    check_swiglu<uint16_t>(run, aligned);
    check_kept_rows<float>(run, aligned);
    check_kept_rows<uint16_t>(run, aligned);
    check_added_norm<float>(run, aligned);
    check_added_norm<uint16_t>(run, aligned);
    check_swiglu_of_rows<float>(run, aligned);
    check_swiglu_of_rows<uint16_t>(run, aligned);
    check_adamw<float>(run, aligned);
    check_adamw<uint16_t>(run, aligned);
  }
}

TEST(RowFunctors, ByOneThread) {
  check_all([](int64_t teams, const auto& functor) { by_one(teams, functor); });
}

TEST(RowFunctors, ByThreadsThatShareATeam) {
  check_all([](int64_t teams, const auto& functor) { by_four(teams, functor); });
}

}  // namespace

// In scan_test.cpp, where Kokkos is started.
void check_row_functors_by_exec() {
  check_all(
      [](int64_t teams, const auto& functor) { exec::for_each_team("test", teams, functor); });
}

}  // namespace trireme::kernels
