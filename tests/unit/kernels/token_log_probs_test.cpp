// The chunked head against the plain formula, and its exponential against the C library's.
#include "torch/torch.hpp"

#include "trireme/kernels/token_log_probs.hpp"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/head_chunks.hpp"
#include "support/tensor_meter.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/log_sum_exp.hpp"

namespace trireme::test {
namespace {

using at::Tensor;
using kernels::Entropy;

Tensor normal_tensor(at::IntArrayRef shape, double scale, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::normal(0.0, scale, shape, generator);
}

struct Problem {
  Tensor hidden, weight, targets, grad_log_probs, grad_entropy;
};

Problem problem(int64_t rows, int64_t width, int64_t vocabulary, at::ScalarType type) {
  Problem out;
  out.hidden = normal_tensor({rows, width}, 1.0, 1).to(type);
  out.weight = normal_tensor({vocabulary, width}, 0.3, 2).to(type);
  out.targets = at::arange(rows, at::kLong) * 37 % vocabulary;
  out.grad_log_probs = normal_tensor({rows}, 1.0, 3);
  out.grad_entropy = normal_tensor({rows}, 1.0, 4);
  out.hidden.set_requires_grad(true);
  out.weight.set_requires_grad(true);
  return out;
}

struct Outcome {
  Tensor log_probs, entropy, grad_hidden, grad_weight;
};

void differentiate(const Problem& p, Outcome& out, bool with_entropy) {
  Tensor loss = (out.log_probs * p.grad_log_probs).sum();
  if (with_entropy) loss = loss + (out.entropy * p.grad_entropy).sum();
  loss.backward();
  out.grad_hidden = p.hidden.grad().clone();
  out.grad_weight = p.weight.grad().clone();
  p.hidden.mutable_grad() = Tensor{};
  p.weight.mutable_grad() = Tensor{};
}

Outcome naive(const Problem& p, double temperature, bool with_entropy) {
  const Tensor z = at::linear(p.hidden, p.weight).to(at::kFloat) / temperature;
  const Tensor all = at::log_softmax(z, 1);
  Outcome out{all.gather(1, p.targets.unsqueeze(1)).squeeze(1), -(all.exp() * all).sum(1), {}, {}};
  differentiate(p, out, with_entropy);
  return out;
}

Outcome chunked(const Problem& p, double temperature, Entropy entropy, int64_t chunk) {
  const auto got =
      kernels::token_log_probs(p.hidden, p.weight, p.targets, temperature, entropy, {chunk});
  Outcome out{got.log_probs, got.entropy, {}, {}};
  differentiate(p, out, entropy == Entropy::differentiable);
  return out;
}

double worst(const Tensor& a, const Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

class Head : public testing::TestWithParam<int64_t> {};  // chunk length

TEST_P(Head, EqualsLogSoftmaxInFp32) {
  const Problem p = problem(9, 24, 1003, at::kFloat);
  for (const double temperature : {1.0, 0.7, 2.5}) {
    const Outcome want = naive(p, temperature, true);
    const Outcome got = chunked(p, temperature, Entropy::differentiable, GetParam());
    EXPECT_LT(worst(got.log_probs, want.log_probs), 5e-6);
    EXPECT_LT(worst(got.entropy, want.entropy), 5e-6);
    EXPECT_LT(worst(got.grad_hidden, want.grad_hidden), 2e-5);
    EXPECT_LT(worst(got.grad_weight, want.grad_weight), 2e-5);
  }
}

TEST_P(Head, EqualsLogSoftmaxInBf16) {
  const Problem p = problem(8, 32, 515, at::kBFloat16);
  const Outcome want = naive(p, 1.0, false);
  const Outcome got = chunked(p, 1.0, Entropy::value, GetParam());
  EXPECT_LT(worst(got.log_probs, want.log_probs), 5e-6)
      << "same rounding of the logits, all else in fp32";
  EXPECT_LT(worst(got.entropy, want.entropy), 5e-6);
  EXPECT_FALSE(got.entropy.requires_grad());
  EXPECT_LT(worst(got.grad_hidden, want.grad_hidden), 0.05);
  EXPECT_LT(worst(got.grad_weight, want.grad_weight), 0.05);
}
// Hidden states in fp32, a weight in bf16: all of it as with the weight widened, whatever the
// chunk; logits are not rounded.
TEST_P(Head, WidensABf16Weight) {
  Problem p = problem(9, 24, 1003, at::kFloat), wide = problem(9, 24, 1003, at::kFloat);
  p.hidden = p.hidden.detach().to(at::kBFloat16).to(at::kFloat).set_requires_grad(true);
  p.weight = p.weight.detach().to(at::kBFloat16).set_requires_grad(true);
  wide.hidden = p.hidden.detach().clone().set_requires_grad(true);
  wide.weight = p.weight.detach().to(at::kFloat).set_requires_grad(true);
  const Outcome want = naive(wide, 0.7, true);
  const Outcome got = chunked(p, 0.7, Entropy::differentiable, GetParam());
  EXPECT_LT(worst(got.log_probs, want.log_probs), 5e-6);
  EXPECT_LT(worst(got.entropy, want.entropy), 5e-6);
  EXPECT_LT(worst(got.grad_hidden, want.grad_hidden), 2e-5);
  EXPECT_LT(worst(got.grad_weight, want.grad_weight.to(at::kBFloat16)), 0.02) << "rounded once";
  p.weight.set_grad_dtype(at::kFloat);
  p.weight.mutable_grad() = at::zeros({1003, 24}, at::kFloat);
  const auto again =
      kernels::token_log_probs(p.hidden, p.weight, p.targets, 0.7, Entropy::skip, {GetParam()});
  (again.log_probs * p.grad_log_probs).sum().backward();
  EXPECT_LT(worst(p.weight.grad(), naive(wide, 0.7, false).grad_weight), 2e-5)
      << "and not at all into a gradient of its own";
}

INSTANTIATE_TEST_SUITE_P(Chunks, Head, testing::Values(1, 16, 100, 512, 1003, 4096));

TEST(TokenLogProbs, DifferentiatesOnlyWhatIsAskedFor) {
  Problem p = problem(5, 8, 60, at::kFloat);
  const Outcome want = naive(p, 1.0, false);
  const auto one = [&](Tensor& frozen, const Tensor& other, const Tensor& want_grad) {
    frozen.set_requires_grad(false);
    const auto got =
        kernels::token_log_probs(p.hidden, p.weight, p.targets, 1.0, Entropy::skip, {32});
    EXPECT_FALSE(got.entropy.defined());
    (got.log_probs * p.grad_log_probs).sum().backward();
    EXPECT_FALSE(frozen.grad().defined());
    EXPECT_LT(worst(other.grad(), want_grad), 1e-5);
    other.mutable_grad() = Tensor{};
    frozen.set_requires_grad(true);
  };
  one(p.weight, p.hidden, want.grad_hidden);
  one(p.hidden, p.weight, want.grad_weight);
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(kernels::token_log_probs(p.hidden, p.weight, p.targets, 1.0, Entropy::skip)
                   .log_probs.requires_grad());
}

TEST(TokenLogProbs, AccumulatesIntoFp32GradientsOfBf16Weights) {
  const Problem p = problem(6, 16, 90, at::kBFloat16);
  const Outcome once = chunked(p, 1.0, Entropy::skip, {64});
  Tensor buffer = at::zeros({90, 16}, at::kFloat);
  p.weight.set_grad_dtype(at::kFloat);
  p.weight.mutable_grad() = buffer;
  for (int pass = 0; pass < 2; ++pass) {
    const auto got =
        kernels::token_log_probs(p.hidden, p.weight, p.targets, 1.0, Entropy::skip, {64});
    (got.log_probs * p.grad_log_probs).sum().backward();
  }
  EXPECT_EQ(p.weight.grad().data_ptr(), buffer.data_ptr());
  EXPECT_TRUE(at::equal((buffer / 2).to(at::kBFloat16), once.grad_weight))
      << "rounded before the sum, or not at all where bf16 is widened";
}

// A leaf with a gradient of its own gets it chunk by chunk: nothing of the weight's size is made
// beside it.
TEST(TokenLogProbs, MakesNoWholeGradientBesideOneThatIsThere) {
  const int64_t vocabulary = 5000, width = 64;
  const Problem p = problem(6, width, vocabulary, at::kBFloat16);
  p.weight.set_grad_dtype(at::kFloat);
  const auto backward = [&] {
    const auto got =
        kernels::token_log_probs(p.hidden, p.weight, p.targets, 1.0, Entropy::skip, {128});
    return peak_tensor_bytes([&] { (got.log_probs * p.grad_log_probs).sum().backward(); });
  };
  const int64_t whole = vocabulary * width * 2;
  EXPECT_GT(backward(), whole) << "the meter sees tensors";
  p.weight.mutable_grad() = at::zeros({vocabulary, width}, at::kFloat);
  EXPECT_LT(backward(), whole / 4);
}

// Kept logits are those of a second product, bit for bit, however many chunks of them fit; the
// widened ones of a bf16 weight too.
TEST(TokenLogProbs, KeptLogitsChangeNoBit) {
  constexpr int64_t rows = 13, chunk = 128, vocabulary = 1003;
  for (const auto& [of_hidden, of_weight] :
       {std::pair(at::kFloat, at::kFloat), std::pair(at::kBFloat16, at::kBFloat16),
        std::pair(at::kFloat, at::kBFloat16)}) {
    Problem p = problem(rows, 32, vocabulary, of_weight);
    p.hidden = p.hidden.detach().to(of_hidden).set_requires_grad(true);
    const auto outcome = [&](int64_t bytes) {
      const auto got = kernels::token_log_probs(p.hidden, p.weight, p.targets, 0.7,
                                                Entropy::differentiable, {chunk, bytes});
      Outcome out{got.log_probs, got.entropy, {}, {}};
      differentiate(p, out, true);
      return out;
    };
    const Outcome want = outcome(0);
    const int64_t of_chunk = (rows + 64) * chunk * 4;  // at most, rows padded
    for (const int64_t bytes : {int64_t{1}, of_chunk, 3 * of_chunk, int64_t{1} << 30}) {
      const Outcome got = outcome(bytes);
      EXPECT_TRUE(at::equal(got.log_probs, want.log_probs)) << bytes;
      EXPECT_TRUE(at::equal(got.entropy, want.entropy)) << bytes;
      EXPECT_TRUE(at::equal(got.grad_hidden, want.grad_hidden)) << bytes;
      EXPECT_TRUE(at::equal(got.grad_weight, want.grad_weight)) << bytes;
    }
  }
}

// What an adapter of the head adds is capped with the rest.
TEST(TokenLogProbs, AdapterAndCapEqualThePlainFormula) {
  constexpr int64_t width = 24, rank = 3;
  constexpr double cap = 2;
  const Problem p = problem(9, width + rank, 300, at::kFloat);
  const Tensor z = at::tanh(at::linear(p.hidden, p.weight) / cap) * cap;
  Outcome want{at::log_softmax(z, 1).gather(1, p.targets.unsqueeze(1)).squeeze(1), {}, {}, {}};
  differentiate(p, want, false);
  for (const int64_t bytes : {int64_t{0}, int64_t{1} << 30}) {
    const kernels::HeadWeight head{p.weight.narrow(1, 0, width), p.weight.narrow(1, width, rank),
                                   cap};
    Outcome got{kernels::token_log_probs(p.hidden, head, p.targets, 1.0, Entropy::skip, {64, bytes})
                    .log_probs,
                {},
                {},
                {}};
    differentiate(p, got, false);
    EXPECT_LT(worst(got.log_probs, want.log_probs), 5e-6);
    EXPECT_LT(worst(got.grad_hidden, want.grad_hidden), 2e-5);
    EXPECT_LT(worst(got.grad_weight, want.grad_weight), 2e-5);
  }
}

// Gradients are made in the place of kept logits; a second pass over the same graph multiplies
// again.
TEST(TokenLogProbs, KeptLogitsAreTakenOnce) {
  const Problem p = problem(6, 16, 300, at::kFloat);
  const auto got = kernels::token_log_probs(p.hidden, p.weight, p.targets, 1.0, Entropy::skip,
                                            {64, int64_t{1} << 30});
  const Tensor loss = (got.log_probs * p.grad_log_probs).sum();
  loss.backward({}, true);
  const Tensor once = p.hidden.grad().clone();
  p.hidden.mutable_grad() = Tensor{};
  loss.backward();
  EXPECT_TRUE(at::equal(p.hidden.grad(), once));
}

// What stays from the forward pass is within its bytes, nothing where nobody differentiates, and
// goes while gradients are made.
TEST(TokenLogProbs, KeptLogitsStayWithinTheirBytes) {
  constexpr int64_t rows = 64, vocabulary = 5000, chunk = 100;
  constexpr int64_t all = rows * vocabulary * 4;
  Problem p = problem(rows, 16, vocabulary, at::kFloat);
  kernels::TokenLogProbs out;
  const auto stays = [&](int64_t bytes) {
    out = {};
    return remaining_tensor_bytes([&] {
      out = kernels::token_log_probs(p.hidden, p.weight, p.targets, 1.0, Entropy::skip,
                                     {chunk, bytes});
    });
  };
  const int64_t without = stays(0);
  EXPECT_LT(without, all / 20);
  EXPECT_LE(stays(all / 2), without + all / 2);
  EXPECT_GT(stays(all / 2), all / 4);
  EXPECT_GE(stays(2 * all), all);
  p.weight.mutable_grad() = at::zeros({vocabulary, 16}, at::kFloat);
  const Tensor loss = out.log_probs.sum();
  EXPECT_LT(remaining_tensor_bytes([&] { loss.backward(); }), -all / 2);
  p.hidden.set_requires_grad(false);
  p.weight.set_requires_grad(false);
  EXPECT_LT(stays(2 * all), all / 20);
}

TEST(TokenLogProbs, EmptyBatch) {
  const Problem p = problem(0, 8, 40, at::kFloat);
  const Outcome got = chunked(p, 1.0, Entropy::differentiable, 16);
  EXPECT_EQ(got.log_probs.numel(), 0);
  EXPECT_EQ(got.grad_hidden.sizes(), p.hidden.sizes());
  EXPECT_EQ(got.grad_weight.abs().sum().item<double>(), 0);
}

TEST(TokenLogProbs, ExtremeLogits) {
  Problem p = problem(4, 8, 100, at::kFloat);
  const at::NoGradGuard no_grad;
  p.weight.mul_(3000.0);
  const Tensor z = at::log_softmax(at::linear(p.hidden, p.weight), 1);
  const auto got =
      kernels::token_log_probs(p.hidden, p.weight, p.targets, 1.0, Entropy::value, {16});
  const Tensor want = z.gather(1, p.targets.unsqueeze(1)).squeeze(1);
  EXPECT_TRUE(at::isfinite(got.log_probs).all().item<bool>());
  EXPECT_TRUE(at::isfinite(got.entropy).all().item<bool>());
  EXPECT_LT(worst(got.log_probs / want, at::ones({4})), 1e-6);
}

TEST(TokenLogProbs, TargetOutsideTheVocabulary) {
  Problem p = problem(3, 8, 40, at::kFloat);
  p.targets[1] = 40;
  try {
    kernels::token_log_probs(p.hidden, p.weight, p.targets, 1.0, Entropy::skip);
    FAIL();
  } catch (const UserError& error) { EXPECT_EQ(error.code(), ExitCode::bad_data); }
}

TEST(TokenLogProbs, DevicePathGivesTheSame) {
  const Problem p = problem(9, 24, 1003, at::kFloat);
  const Outcome want = naive(p, 0.7, true);
  const at::NoGradGuard no_grad;
  const auto rows = kernels::forward_device({p.hidden, p.weight, p.targets, 1 / 0.7, {256}}, true);
  EXPECT_LT(worst(rows.log_probs, want.log_probs), 5e-6);
  EXPECT_LT(worst(rows.entropy, want.entropy), 5e-6);
  const Tensor logits = at::linear(p.hidden, p.weight);
  kernels::gradient_device(logits, 0, p.targets, 1 / 0.7, rows, {p.grad_log_probs, p.grad_entropy});
  EXPECT_LT(worst(at::mm(logits, p.weight), want.grad_hidden), 2e-5);
}

TEST(LogSumExp, ExponentialIsWithinTwoUlp) {
  // exp(z - log_sum_exp) through the gradient kernel with gradient -1 and scale 1
  for (float x = -87.f; x < 0.5f; x += 0.0137f) {
    float value = x;
    kernels::softmax_gradient({1.f, 0.f, 0.f, -1.f, 0.f}, &value, 1);
    const double want = std::exp(static_cast<double>(x));
    EXPECT_NEAR(value, want, 2.4e-7 * want) << x;
  }
  float far = -1e30f;
  kernels::softmax_gradient({1.f, 0.f, 0.f, -1.f, 0.f}, &far, 1);
  EXPECT_EQ(far, 0.f);
}

// The result depends on the chunks alone, not on where a row lies or how long its last vector is.
TEST(LogSumExp, TailEqualsPaddedVector) {
  const Tensor z = normal_tensor({64}, 3.0, 9);
  for (int64_t n = 1; n <= 48; ++n) {
    Tensor padded = at::full({64}, -std::numeric_limits<float>::max());
    padded.narrow(0, 0, n).copy_(z.narrow(0, 0, n));
    kernels::LogSumExp a, b;
    kernels::update_with_entropy(a, z.const_data_ptr<float>(), n, 1.f);
    kernels::update_with_entropy(b, padded.const_data_ptr<float>(), n + 15, 1.f);
    EXPECT_EQ(a.log_sum_exp(), b.log_sum_exp()) << n;
    EXPECT_EQ(a.max, b.max);
  }
}

}  // namespace
}  // namespace trireme::test
