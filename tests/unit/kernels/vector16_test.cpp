// The sixteen lanes: their functions in double, their loads and stores at the edge of a page, their
// order of additions.
#include "trireme/kernels/vector16.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "support/instruction_sets.hpp"
#include "values.hpp"

namespace trireme::test {
namespace {

namespace lanes = kernels::lanes;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

enum class Function { exp, exp_above_zero, sigmoid };

TRIREME_LANES_INLINE void apply(Function function, const float* x, float* y, int64_t elements) {
  lanes::for_each_vector(
      elements, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
        const lanes::Float v = lanes::load(x + i, n);
        if (function == Function::exp) {
          lanes::store(y + i, lanes::exp(v), n);
        } else if (function == Function::exp_above_zero) {
          lanes::store(y + i, lanes::exp_above_zero(v), n);
        } else {
          lanes::store(y + i, lanes::sigmoid(v), n);
        }
      });
}
void apply_baseline(Function function, const float* x, float* y, int64_t n) {
  apply(function, x, y, n);
}
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
// With fused multiply-add at hand.
__attribute__((target("arch=x86-64-v3"))) void apply_avx2(Function function, const float* x,
                                                          float* y, int64_t n) {
  apply(function, x, y, n);
}
__attribute__((target("arch=x86-64-v4"))) void apply_avx512(Function function, const float* x,
                                                            float* y, int64_t n) {
  apply(function, x, y, n);
}
#else
constexpr auto apply_avx2 = apply_baseline, apply_avx512 = apply_baseline;
#endif

std::vector<float> evaluate(Function function, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  const auto isa = base::active_isa();
  const auto best = isa >= base::Isa::avx512 ? apply_avx512
                    : isa >= base::Isa::avx2 ? apply_avx2
                                             : apply_baseline;
  best(function, x.data(), y.data(), static_cast<int64_t>(x.size()));
  return y;
}
float evaluate(Function function, float x) {
  return evaluate(function, std::vector<float>{x}).front();
}

// Floats of all magnitudes in [low, high], about half a million.
std::vector<float> sweep(float low, float high) {
  std::vector<float> out{low, high, 0.f};
  for (uint32_t bits = 0x30000000; bits < 0x42c00000; bits += 1201) {  // 4.7e-10 to 96
    const float magnitude = std::bit_cast<float>(bits);
    for (const float x : {magnitude, -magnitude}) {
      if (x >= low && x <= high) out.push_back(x);
    }
  }
  return out;
}

// The error in units of the last place of the exact value, a normal number.
double ulps(float got, double exact) {
  return std::abs(static_cast<double>(got) - exact) / std::ldexp(1.0, std::ilogb(exact) - 23);
}

template <class Exact>
double worst_ulps(Function function, float low, float high, const Exact& exact) {
  const std::vector<float> x = sweep(low, high), y = evaluate(function, x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i)
    worst = std::max(worst, ulps(y[i], exact(static_cast<double>(x[i]))));
  return worst;
}

TEST(Lanes, ExponentialsAreWithinTwoUlp) {
  const auto exact = [](double x) { return std::exp(x); };
  EXPECT_LE(worst_ulps(Function::exp, -87.3f, 88.f, exact), 2);
  EXPECT_LE(worst_ulps(Function::exp_above_zero, -87.f, 88.f, exact), 2);
}

TEST(Lanes, SigmoidIsWithinFourUlp) {
  EXPECT_LE(
      worst_ulps(Function::sigmoid, -87.f, 96.f, [](double x) { return 1 / (1 + std::exp(-x)); }),
      4);
}

TEST(Lanes, FunctionsAtTheEdgesOfTheirRange) {
  EXPECT_EQ(evaluate(Function::exp, 0.f), 1.f);
  EXPECT_GT(evaluate(Function::exp, -87.3f), 0.f);
  for (const float x : {std::nextafterf(-87.3f, -100.f), -104.f, -1e30f, -infinity})
    EXPECT_EQ(evaluate(Function::exp, x), 0.f) << x;
  for (const float x : {-87.f, -87.3f, -1e30f, -infinity}) {
    EXPECT_LE(ulps(evaluate(Function::exp_above_zero, x), std::exp(-87.0)), 2) << x;
  }
  for (const float x : {88.f, 89.f, infinity})
    EXPECT_LE(ulps(evaluate(Function::exp_above_zero, x), std::exp(88.0)), 2) << x;
  EXPECT_EQ(evaluate(Function::sigmoid, 0.f), 0.5f);
  EXPECT_EQ(evaluate(Function::sigmoid, infinity), 1.f);
  EXPECT_LT(evaluate(Function::sigmoid, -infinity), 1e-37f);
  for (const auto function : {Function::exp, Function::exp_above_zero, Function::sigmoid}) {
    EXPECT_TRUE(std::isnan(evaluate(function, nan)));
    EXPECT_TRUE(std::isnan(evaluate(function, -nan)));
  }
}

TEST(Lanes, FunctionsHaveTheSameBitsOnEveryInstructionSet) {
  const std::vector<float> x = sweep(-100.f, 88.f);
  for (const auto function : {Function::exp, Function::exp_above_zero, Function::sigmoid}) {
    std::vector<float> baseline(x.size());
    apply_baseline(function, x.data(), baseline.data(), static_cast<int64_t>(x.size()));
    for (const auto isa : usable_instruction_sets()) {
      const UnderInstructionSet use(isa);
      EXPECT_EQ(evaluate(function, x), baseline) << base::to_string(isa);
    }
  }
}

TEST(Lanes, Bf16StoresRoundToNearestEven) {
  constexpr std::array<uint32_t, 16> low{0,      1,      2,      0x1234, 0x4000, 0x7ffe,
                                         0x7fff, 0x8000, 0x8001, 0x8002, 0xa5a5, 0xbfff,
                                         0xc000, 0xfffd, 0xfffe, 0xffff};
  for (uint32_t high = 0; high < 0x10000; ++high) {
    lanes::Float value;
    for (int i = 0; i < 16; ++i)
      value.set(i, std::bit_cast<float>(high << 16 | low[static_cast<size_t>(i)]));
    std::array<uint16_t, 16> stored{};
    lanes::store(stored.data(), value);
    for (size_t i = 0; i < 16; ++i) {
      const float from = std::bit_cast<float>(high << 16 | low[i]), to = from_bf16(stored[i]);
      if (std::isnan(from)) {
        ASSERT_TRUE(std::isnan(to)) << std::hex << (high << 16 | low[i]);
        ASSERT_EQ(std::signbit(to), std::signbit(from));
      } else {
        ASSERT_EQ(stored[i], to_bf16(from)) << std::hex << (high << 16 | low[i]);
      }
    }
  }
}

// A writable page with an inaccessible one on either side: whoever goes beyond it ends the process.
class GuardedPage {
 public:
  GuardedPage() : size_(static_cast<size_t>(::sysconf(_SC_PAGESIZE))) {
    void* map = ::mmap(nullptr, 3 * size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED ||
        ::mprotect(static_cast<char*>(map) + size_, size_, PROT_READ | PROT_WRITE) != 0) {
      throw std::runtime_error("no memory for a guarded page");
    }
    start_ = static_cast<char*>(map);
  }
  ~GuardedPage() { ::munmap(start_, 3 * size_); }
  GuardedPage(const GuardedPage&) = delete;
  GuardedPage& operator=(const GuardedPage&) = delete;
  template <class T>
  T* first() const {
    return reinterpret_cast<T*>(start_ + size_);
  }
  template <class T>
  T* last(int64_t n) const {
    return reinterpret_cast<T*>(start_ + 2 * size_) - n;
  }

 private:
  size_t size_;
  char* start_ = nullptr;
};

template <class T>
T element(int64_t i) {
  const float value = 1.5f + 0.25f * static_cast<float>(i);
  if constexpr (sizeof(T) == 2) return to_bf16(value);
  return static_cast<T>(value);
}

template <class T>
void check_part(T* at, int64_t n) {
  for (int64_t i = 0; i < n; ++i) at[i] = element<T>(i);
  const lanes::Float loaded = lanes::load(at, n, -7.f);
  for (int64_t i = 0; i < lanes::count; ++i) {
    EXPECT_EQ(loaded[i], i < n ? 1.5f + 0.25f * static_cast<float>(i) : -7.f)
        << "lane " << i << " of " << n;
  }
  for (int64_t i = 0; i < n; ++i) at[i] = T{};
  lanes::store(at, loaded, n);
  for (int64_t i = 0; i < n; ++i) EXPECT_EQ(at[i], element<T>(i)) << "element " << i << " of " << n;
}

template <class T>
void check_parts() {
  const GuardedPage page;
  for (int64_t n = 0; n <= lanes::count; ++n) {
    check_part(page.last<T>(n), n);
    T* first = page.first<T>();
    first[n] = element<T>(99);
    check_part(first, n);
    EXPECT_EQ(first[n], element<T>(99)) << "a store of " << n << " elements wrote one more";
  }
}

TEST(Lanes, PartsOfAVectorTouchNothingBeyond) {
  check_parts<float>();
  check_parts<uint16_t>();
}

TEST(Lanes, RoundedIsWhatComesBackFromMemory) {
  lanes::Float value;
  for (int i = 0; i < 16; ++i) value.set(i, 1.f + 0.001f * static_cast<float>(i));
  const lanes::Float f32 = lanes::rounded(value, static_cast<const float*>(nullptr));
  const lanes::Float bf16 = lanes::rounded(value, static_cast<const uint16_t*>(nullptr));
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(f32[i], value[i]);
    EXPECT_EQ(bf16[i], from_bf16(to_bf16(value[i])));
  }
}

// Lanes i, i + step, ... added as halves onto halves.
float folded(const lanes::Float& v, int lane, int step) {
  return step == 16 ? v[lane] : folded(v, lane, 2 * step) + folded(v, lane + step, 2 * step);
}

TEST(Lanes, SumsHaveTheirOrder) {
  int differs = 0;
  for (uint64_t trial = 0; trial < 200; ++trial) {
    const std::vector<float> values = normals(trial, 16);
    lanes::Float v;
    float one_by_one = 0;
    double in_double = 0;
    for (int i = 0; i < 16; ++i) {
      v.set(i, values[static_cast<size_t>(i)]);
      one_by_one += v[i];
      in_double += static_cast<double>(v[i]);
    }
    EXPECT_EQ(lanes::tree_sum(v), folded(v, 0, 1));
    EXPECT_EQ(lanes::horizontal_sum(v), in_double);
    differs += lanes::tree_sum(v) != one_by_one;
  }
  EXPECT_GT(differs, 50) << "data on which the order does not show";
}

TEST(Lanes, MaximumOfAnyLane) {
  for (int at = 0; at < 16; ++at) {
    lanes::Float v = lanes::Float{} - infinity;
    v.set(at, -3.f);
    EXPECT_EQ(lanes::horizontal_max(v), -3.f);
    EXPECT_EQ(lanes::horizontal_max(lanes::max(v, lanes::Float{} - 2.f)), -2.f);
    v = lanes::clamp(v, -5.f, -4.f);
    for (int i = 0; i < 16; ++i) EXPECT_EQ(v[i], i == at ? -4.f : -5.f);
  }
}

TEST(Lanes, EveryIndexIsVisitedOnceInOrder) {
  for (int64_t elements = 0; elements <= 70; ++elements) {
    int64_t next = 0, calls = 0;
    lanes::for_each_vector(elements, [&](int64_t i, int64_t n) {
      EXPECT_EQ(i, next);
      EXPECT_EQ(n, std::min<int64_t>(16, elements - i));
      next = i + n;
      ++calls;
    });
    EXPECT_EQ(next, elements);
    EXPECT_EQ(calls, (elements + 15) / 16);
  }
}

}  // namespace
}  // namespace trireme::test
