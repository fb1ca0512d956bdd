// Every vector kernel that fuses nothing, on every instruction set, against the portable code: the
// same bits, whatever the values and lengths. Their values are compared with double elsewhere
// (log_sum_exp_test, sampling_edges_test, rows_test, adamw_in_double_test).
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/lane_kernels.hpp"
#include "support/instruction_sets.hpp"
#include "trireme/kernels/decode_rows.hpp"
#include "trireme/kernels/sampling.hpp"
#include "values.hpp"

namespace trireme::test {
namespace {

using namespace kernels;

constexpr int64_t longest_shard = 150;  // beyond two words of the optimizer's bitmap

// Ordinary values with an infinity, a NaN, zeros and a subnormal number among them.
std::vector<float> odd_values(uint64_t stream, int64_t count) {
  std::vector<float> out = normals(stream, count, 3);
  const float specials[] = {
      -std::numeric_limits<float>::infinity(), 0.f, -0.f, 1e-41f, 1e30f, -1e30f};
  for (size_t i = 0; i < out.size(); i += 7) out[i] = specials[i / 7 % std::size(specials)];
  return out;
}

// All bytes that a run leaves behind.
class Bytes {
 public:
  template <class T>
  void add(const std::vector<T>& values) {
    const auto* from = reinterpret_cast<const char*>(values.data());
    bytes_.insert(bytes_.end(), from, from + values.size() * sizeof(T));
  }
  template <class T>
  void add(const T& value) {
    static_assert(std::has_unique_object_representations_v<T> || std::is_floating_point_v<T>);
    add(std::vector<T>{value});
  }
  bool operator==(const Bytes&) const = default;

 private:
  std::vector<char> bytes_;
};

template <class Run>
void expect_same_bits(const Run& run) {
  Bytes portable;
  {
    const UnderInstructionSet use(base::Isa::portable);
    run(portable);
  }
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    Bytes own;
    run(own);
    EXPECT_TRUE(own == portable) << base::to_string(isa);
  }
}

template <class T>
std::vector<T> as(const std::vector<float>& values);
template <>
std::vector<float> as(const std::vector<float>& values) {
  return values;
}
template <>
std::vector<uint16_t> as(const std::vector<float>& values) {
  return to_bf16(values);
}

template <class T>
class SameBits : public testing::Test {};
using ElementTypes = testing::Types<float, uint16_t>;
TYPED_TEST_SUITE(SameBits, ElementTypes);

TYPED_TEST(SameBits, LogSumExpAndItsGradient) {
  expect_same_bits([](Bytes& out) {
    for (const int64_t n : {1, 15, 16, 17, 33, 64, 150}) {
      for (const auto& values : {normals(1, n, 4), odd_values(2, n)}) {
        auto logits = as<TypeParam>(values);
        LogSumExp plain, with_entropy;
        update(plain, logits.data(), n, 0.7f);
        update(plain, logits.data(), n / 2, 0.7f);
        update_with_entropy(with_entropy, logits.data(), n, 1.3f);
        for (const LogSumExp& row : {plain, with_entropy}) {
          out.add(row.max);
          out.add(row.sum);
          out.add(row.weighted);
        }
        for (const float of_entropy : {0.f, 0.2f}) {
          softmax_gradient({.scale = 0.7f,
                            .log_sum_exp = plain.log_sum_exp(),
                            .entropy = 1.5f,
                            .grad_log_prob = -0.3f,
                            .grad_entropy = of_entropy},
                           logits.data(), n);
          out.add(logits);
        }
      }
    }
  });
}

TYPED_TEST(SameBits, Draws) {
  expect_same_bits([](Bytes& out) {
    for (const int64_t n : {1, 16, 31, 1000, 5000}) {
      const auto logits = as<TypeParam>(normals(3, n, 2));
      const LogitsRow row{sizeof(TypeParam) == 4 ? ElementType::f32 : ElementType::bf16,
                          logits.data(), n};
      out.add(argmax(row));
      std::vector<LogSumExp> after;
      accumulate(row, 1.1f, after);
      for (const float uniform : {0.f, 0.1f, 0.5f, 0.93f, 0.999f}) {
        out.add(choose_index(row, 1.1f, after,
                             choose_slice({&after.back(), 1}, after.back(), uniform).target));
      }
      std::vector<Candidate> candidates;
      collect_candidates(row, 100, 1.1f, 0.5f, candidates);
      for (const Candidate& c : candidates) {
        out.add(c.id);
        out.add(c.z);
      }
      EXPECT_FALSE(n > 100 && candidates.empty());
    }
  });
}

TYPED_TEST(SameBits, RowSums) {
  expect_same_bits([](Bytes& out) {
    for (int64_t n = 0; n <= 40; ++n) {
      auto x = as<TypeParam>(odd_values(4, n + 1));
      const auto y = as<TypeParam>(odd_values(5, n + 1));
      const ElementType type = sizeof(TypeParam) == 4 ? ElementType::f32 : ElementType::bf16;
      add_row(type, x.data(), y.data(), n);
      out.add(x);
      const std::vector<float> partials = odd_values(6, 3 * 50);
      reduce_row(type, partials.data(), 3, 50, x.data(), n);
      out.add(x);
    }
  });
}

TEST(SameBitsOfTheOptimizer, Update) {
  expect_same_bits([](Bytes& out) {
    for (int64_t n = 1; n <= longest_shard; ++n) {
      for (const bool as_bf16 : {true, false}) {
        std::vector<float> master = normals(7, n), moment1 = normals(8, n, 0.1f),
                           moment2 = normals(9, n), compute = master;
        for (float& v : moment2) v *= v;
        std::vector<float> gradient = odd_values(10, n);
        gradient[static_cast<size_t>(n / 2)] = std::numeric_limits<float>::quiet_NaN();
        auto bf16 = to_bf16(master);
        std::vector<uint64_t> changed(static_cast<size_t>((n + 63) / 64), ~uint64_t{0});
        AdamWShard shard{.master = master.data(),
                         .moment1 = moment1.data(),
                         .moment2 = moment2.data(),
                         .gradient = gradient.data(),
                         .changed = changed.data(),
                         .elements = n};
        shard.compute_bf16 = as_bf16 ? bf16.data() : nullptr;
        shard.compute_fp32 = as_bf16 ? nullptr : compute.data();
        out.add(lane_kernels().shard.adamw(
            shard, AdamWFactors({.lr = 1e-3, .weight_decay = 0.1, .clip_factor = 0.5, .step = 3}),
            0, static_cast<int64_t>(changed.size())));
        for (const auto* column : {&master, &moment1, &moment2, &compute}) out.add(*column);
        out.add(bf16);
        out.add(changed);
      }
    }
  });
}

TEST(SameBitsOfTheOptimizer, NormCastAndAverage) {
  expect_same_bits([](Bytes& out) {
    const ShardKernels& kernels = lane_kernels().shard;
    for (int64_t n = 0; n <= longest_shard; ++n) {
      const std::vector<float> values = odd_values(11, n), finite = normals(12, n);
      std::vector<uint16_t> bf16(values.size() + 1, 0xabcd);
      std::vector<float> average = normals(13, n + 1);
      kernels.cast_to_bf16(values.data(), bf16.data(), n);
      kernels.add_bf16(average.data(), bf16.data(), n);
      kernels.moving_average(average.data(), finite.data(), 0.99f, 0.01f, n);
      out.add(kernels.sum_of_squares(finite.data(), n));
      out.add(bf16);
      out.add(average);
    }
  });
}

// What the comparison rests on: the sets are different code.
TEST(SameBitsOfTheOptimizer, TablesDiffer) {
  if (usable_instruction_sets().size() == 1) GTEST_SKIP() << "only portable code can run here";
  const auto* best = &lane_kernels();
  const UnderInstructionSet use(base::Isa::portable);
  EXPECT_NE(best, &lane_kernels());
  EXPECT_EQ(&lane_kernels(), &lane_kernels_portable);
}

}  // namespace
}  // namespace trireme::test
