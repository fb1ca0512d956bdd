// Our CPU attention against LibTorch's in fp64: values and gradients.
#include "torch/torch.hpp"

#include "model/packed_attention.hpp"

#include <gtest/gtest.h>

#include "support/instruction_sets.hpp"
#include "trireme/kernels/decode_gemm.hpp"

namespace trireme::model {
namespace {

using test::UnderInstructionSet;
using test::usable_instruction_sets;

struct Result {
  at::Tensor out;
  std::vector<at::Tensor> gradients;
};

constexpr double other_scale = 0.19;  // no power of two, and not 1 / sqrt(head size)

template <class Attend>
Result run(Attend&& attend, std::vector<at::Tensor> inputs, const at::Tensor& slope,
           at::ScalarType type, const std::vector<int64_t>& cu_seqlens,
           const Scores& scores = other_scale) {
  for (auto& input : inputs) input = input.to(type).detach().clone().requires_grad_(true);
  const at::Tensor out = attend(inputs[0], inputs[1], inputs[2], scores, cu_seqlens);
  out.backward(slope.to(type));
  return {out.detach(), {inputs[0].grad(), inputs[1].grad(), inputs[2].grad()}};
}

void expect_close(const at::Tensor& got, const at::Tensor& want, double relative,
                  const std::string& what) {
  const at::Tensor g = got.to(at::kDouble), w = want.to(at::kDouble);
  EXPECT_LE(g.sub(w).abs().max().item<double>(), relative * w.abs().max().item<double>()) << what;
}

void expect_fp64(at::ScalarType type, int64_t heads, int64_t kv_heads, int64_t head_dim,
                 const std::vector<int64_t>& cu_seqlens, const Scores& scores = other_scale) {
  const int64_t tokens = cu_seqlens.back();
  const auto draw = [&](int64_t h) {
    return at::randn({tokens, h, head_dim}).to(type).to(at::kFloat);
  };
  const std::vector<at::Tensor> inputs{draw(heads), draw(kv_heads), draw(kv_heads)};
  const at::Tensor slope = draw(heads);
  const Result got = run(attend_packed, inputs, slope, type, cu_seqlens, scores);
  const Result want = run(attend_by_sequence, inputs, slope, at::kDouble, cu_seqlens, scores);
  const double tolerance =
      type == at::kFloat ? 4e-6
                         : 2.5e-2;  // of 300 draws of each shape the worst had 2.5e-6 and 1.4e-2
  const std::string name = base::to_string(base::active_isa()) + ", " + std::to_string(heads) +
                           "/" + std::to_string(kv_heads) + " heads of " +
                           std::to_string(head_dim) + ", window " + std::to_string(scores.window) +
                           ", cap " + std::to_string(scores.cap);
  expect_close(got.out, want.out, tolerance, name + " value");
  for (size_t i = 0; i < 3; ++i)
    expect_close(got.gradients[i], want.gradients[i], tolerance,
                 name + " gradient " + std::to_string(i));
}

TEST(PackedAttention, matches_fp64) {
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    for (const auto& [heads, kv_heads, head_dim] :
         {std::tuple(9, 3, 64), std::tuple(2, 2, 16), std::tuple(4, 1, 80), std::tuple(2, 1, 128),
          std::tuple(2, 1, 20), std::tuple(3, 1, 25)}) {
      // Lengths 1, 63, 0, 65, 203, 5.
      for (const auto type : {at::kFloat, at::kBFloat16})
        expect_fp64(type, heads, kv_heads, head_dim, {0, 1, 64, 64, 129, 332, 337});
    }
    // Softmaxes of two and three chunks of keys.
    for (const auto type : {at::kFloat, at::kBFloat16})
      expect_fp64(type, 4, 2, 40, {0, 1100, 1613});
  }
}

const std::vector<Scores> other_scores{{0.19, 2},     {0.19, 7},      {0.19, 64},   {0.19, 65},
                                       {0.19, 200},   {0.19, 600},    {0.19, 4000}, {0.19, 0, 2.0},
                                       {0.19, 0, 50}, {0.19, 70, 1.5}};

TEST(PackedAttention, windows_and_caps_match_fp64) {
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      for (const Scores& scores : other_scores) {
        expect_fp64(type, 3, 1, 25, {0, 1, 64, 64, 129, 332, 337}, scores);
        expect_fp64(type, 2, 1, 16, {0, 1100, 1613}, scores);
      }
    }
  }
}

// A query's window is what it would see alone.
TEST(PackedAttention, a_window_hides_what_lies_before_it) {
  const at::Tensor q = at::randn({300, 2, 32}), k = at::randn({300, 1, 32}),
                   v = at::randn({300, 1, 32});
  const at::Tensor got = attend_packed(q, k, v, {0.19, 40}, {0, 300});
  const at::Tensor hidden = k.clone();
  hidden.narrow(0, 0, 200).fill_(1e4);
  EXPECT_TRUE(attend_packed(q, hidden, v, {0.19, 40}, {0, 300})
                  .narrow(0, 239, 61)
                  .equal(got.narrow(0, 239, 61)));
  EXPECT_FALSE(attend_packed(q, hidden, v, {0.19, 40}, {0, 300})
                   .narrow(0, 238, 1)
                   .equal(got.narrow(0, 238, 1)));
}

// fp32 has two sets of bits: products added with one rounding, and with two. bf16 has one.
TEST(PackedAttention, every_instruction_set_gives_the_same_bits) {
  for (const int64_t head_dim : {64, 48, 25}) {
    const std::vector<at::Tensor> inputs{at::randn({235, 4, head_dim}),
                                         at::randn({235, 2, head_dim}),
                                         at::randn({235, 2, head_dim})};
    const at::Tensor slope = at::randn({235, 4, head_dim});
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      std::vector<at::Tensor> want[2];
      for (const auto isa : usable_instruction_sets()) {
        const UnderInstructionSet use(isa);
        const Result result = run(attend_packed, inputs, slope, type, {0, 37, 235});
        const std::vector<at::Tensor> got{result.out, result.gradients[0], result.gradients[1],
                                          result.gradients[2]};
        auto& first = want[type == at::kFloat && !kernels::products_are_fused()];
        if (first.empty()) first = got;
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_TRUE(at::equal(got[i], first[i]))
              << base::to_string(isa) << ", " << type << ", head size " << head_dim << ", result "
              << i;
        }
      }
    }
  }
}

TEST(PackedAttention, large_scores_do_not_overflow) {
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    const at::Tensor x = at::randn({100, 2, 32}).mul(30);
    const std::vector<int64_t> cu_seqlens{0, 100};
    const at::Tensor got = attend_packed(x, x, x, other_scale, cu_seqlens);
    expect_close(got,
                 attend_by_sequence(x.to(at::kDouble), x.to(at::kDouble), x.to(at::kDouble),
                                    other_scale, cu_seqlens),
                 1e-5, "value");
  }
}

TEST(PackedAttention, a_query_does_not_depend_on_what_follows_or_surrounds_it) {
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor q = at::randn({300, 6, 64}).to(type), k = at::randn({300, 2, 64}).to(type),
                       v = at::randn({300, 2, 64}).to(type);
      const at::Tensor whole = attend_packed(q, k, v, other_scale, {0, 100, 300});
      for (const int64_t length : {1, 37, 64, 130}) {
        const at::Tensor alone = attend_packed(q.narrow(0, 100, length), k.narrow(0, 100, length),
                                               v.narrow(0, 100, length), other_scale, {0, length});
        EXPECT_TRUE(at::equal(alone, whole.narrow(0, 100, length)))
            << base::to_string(isa) << ", " << length;
      }
    }
  }
}

// With one sequence most threads would be idle: they take part in it together. Short ones are dealt
// out.
TEST(PackedAttention, same_bits_for_any_number_of_threads) {
  for (const auto isa : usable_instruction_sets()) {
    const UnderInstructionSet use(isa);
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      for (const auto& cu_seqlens : {std::vector<int64_t>{0, 700},
                                     {0, 1, 70, 650, 700},
                                     {0, 200, 300, 400, 500, 600, 700}}) {
        const std::vector<at::Tensor> inputs{at::randn({700, 6, 32}), at::randn({700, 2, 32}),
                                             at::randn({700, 2, 32})};
        const at::Tensor slope = at::randn({700, 6, 32});
        for (const Scores& scores : {Scores(other_scale), Scores(other_scale, 100, 3.0)}) {
          const Result want = run(attend_packed, inputs, slope, type, cu_seqlens, scores);
          for (const int threads : {2, 3, 8}) {
            at::set_num_threads(threads);
            const Result got = run(attend_packed, inputs, slope, type, cu_seqlens, scores);
            at::set_num_threads(1);
            EXPECT_TRUE(at::equal(got.out, want.out)) << threads;
            for (size_t i = 0; i < 3; ++i)
              EXPECT_TRUE(at::equal(got.gradients[i], want.gradients[i]))
                  << base::to_string(isa) << ", " << threads << " threads, " << i;
          }
        }
      }
    }
  }
}

TEST(PackedAttention, threads_share_what_does_not_fill_them) {
  const auto fill = [](std::vector<int64_t> lengths, int threads) {
    return tasks_fill(lengths, threads);
  };
  EXPECT_TRUE(fill({16384}, 1));
  EXPECT_FALSE(fill({16384}, 2));
  EXPECT_TRUE(fill({512, 512}, 2));
  EXPECT_FALSE(fill({512, 512, 512}, 2)) << "4 to 3";
  EXPECT_TRUE(fill({700, 300, 300, 300, 300, 300}, 2)) << "490 and 450";
  EXPECT_FALSE(fill({700, 300}, 2));
  EXPECT_TRUE(fill(std::vector<int64_t>(48, 100), 16));
  EXPECT_FALSE(fill(std::vector<int64_t>(48, 100), 64));
}

TEST(PackedAttention, no_tokens_keep_the_graph) {
  const at::Tensor q = at::zeros({0, 4, 16}).requires_grad_(true),
                   k = at::zeros({0, 2, 16}).requires_grad_(true);
  attend_packed(q, k, k, other_scale, {0}).sum().backward();
  EXPECT_TRUE(k.grad().defined());
}

}  // namespace
}  // namespace trireme::model
