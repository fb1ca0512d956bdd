// Our CPU attention against LibTorch's in fp64: values and gradients.
#include "torch/torch.hpp"

#include "model/packed_attention.hpp"

#include <gtest/gtest.h>

#include "model/attention_kernels.hpp"

namespace trireme::model {
namespace {

struct Result {
  at::Tensor out;
  std::vector<at::Tensor> gradients;
};

template <class Attend>
Result run(Attend&& attend, std::vector<at::Tensor> inputs, const at::Tensor& slope, at::ScalarType type,
           const std::vector<int64_t>& cu_seqlens) {
  for (auto& input : inputs) input = input.to(type).detach().clone().requires_grad_(true);
  const at::Tensor out = attend(inputs[0], inputs[1], inputs[2], cu_seqlens);
  out.backward(slope.to(type));
  return {out.detach(), {inputs[0].grad(), inputs[1].grad(), inputs[2].grad()}};
}

void expect_close(const at::Tensor& got, const at::Tensor& want, double relative, const std::string& what) {
  const at::Tensor g = got.to(at::kDouble), w = want.to(at::kDouble);
  EXPECT_LE(g.sub(w).abs().max().item<double>(), relative * w.abs().max().item<double>()) << what;
}

TEST(PackedAttention, matches_fp64) {
  const std::vector<int64_t> cu_seqlens{0, 1, 64, 64, 129, 332, 337};  // lengths 1, 63, 0, 65, 203, 5
  const int64_t tokens = cu_seqlens.back();
  for (const auto& [heads, kv_heads, head_dim] :
       {std::tuple(9, 3, 64), std::tuple(2, 2, 16), std::tuple(4, 1, 80), std::tuple(2, 1, 128)}) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      if (!has_attention_kernels(type == at::kBFloat16, head_dim))
        GTEST_SKIP() << "this CPU has no AVX-512: LibTorch's attention is used";
      const auto draw = [&, d = head_dim](int64_t h) { return at::randn({tokens, h, d}).to(type).to(at::kFloat); };
      const std::vector<at::Tensor> inputs{draw(heads), draw(kv_heads), draw(kv_heads)};
      const at::Tensor slope = draw(heads);
      const Result got = run(attend_packed, inputs, slope, type, cu_seqlens);
      const Result want = run(attend_by_sequence, inputs, slope, at::kDouble, cu_seqlens);
      const double tolerance = type == at::kFloat ? 2e-6 : 1e-2;
      const std::string name = std::to_string(heads) + "/" + std::to_string(kv_heads) + " heads of " + std::to_string(head_dim);
      expect_close(got.out, want.out, tolerance, name + " value");
      for (size_t i = 0; i < 3; ++i)
        expect_close(got.gradients[i], want.gradients[i], tolerance, name + " gradient " + std::to_string(i));
    }
  }
}

TEST(PackedAttention, large_scores_do_not_overflow) {
  const at::Tensor x = at::randn({100, 2, 32}).mul(30);
  const std::vector<int64_t> cu_seqlens{0, 100};
  const at::Tensor got = attend_packed(x, x, x, cu_seqlens);
  expect_close(got, attend_by_sequence(x.to(at::kDouble), x.to(at::kDouble), x.to(at::kDouble), cu_seqlens), 1e-5, "value");
}

TEST(PackedAttention, a_query_does_not_depend_on_what_follows_or_surrounds_it) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    if (!has_attention_kernels(type == at::kBFloat16, 64))
      GTEST_SKIP() << "this CPU has no AVX-512: LibTorch's attention is used";
    const at::Tensor q = at::randn({300, 6, 64}).to(type), k = at::randn({300, 2, 64}).to(type),
                     v = at::randn({300, 2, 64}).to(type);
    const at::Tensor whole = attend_packed(q, k, v, {0, 100, 300});
    for (const int64_t length : {1, 37, 64, 130}) {
      const at::Tensor alone =
          attend_packed(q.narrow(0, 100, length), k.narrow(0, 100, length), v.narrow(0, 100, length), {0, length});
      EXPECT_TRUE(at::equal(alone, whole.narrow(0, 100, length))) << length;
    }
  }
}

TEST(PackedAttention, same_bits_for_any_number_of_threads) {
  const at::Tensor q = at::randn({256, 6, 32}).requires_grad_(true), k = at::randn({256, 2, 32}).requires_grad_(true);
  const auto gradient = [&](int threads) {
    at::set_num_threads(threads);
    k.mutable_grad() = at::Tensor();
    attend_packed(q, k, k, {0, 200, 256}).square().sum().backward();
    at::set_num_threads(1);
    return k.grad().clone();
  };
  EXPECT_TRUE(at::equal(gradient(1), gradient(2)));
}

TEST(PackedAttention, no_tokens_keep_the_graph) {
  const at::Tensor q = at::zeros({0, 4, 16}).requires_grad_(true), k = at::zeros({0, 2, 16}).requires_grad_(true);
  attend_packed(q, k, k, {0}).sum().backward();
  EXPECT_TRUE(k.grad().defined());
}

}  // namespace
}  // namespace trireme::model
