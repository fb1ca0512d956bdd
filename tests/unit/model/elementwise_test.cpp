// The fused CPU kernels against the same mathematics in LibTorch operations: values and gradients,
// fp32 and bf16.
#include "torch/torch.hpp"

#include "model/elementwise.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "model/row_kernels_table.hpp"
#include "trireme/base/isa.hpp"
#include "trireme/model/device_rows.hpp"
#include "trireme/model/forward.hpp"
#include "trireme/model/row_kernels.hpp"

namespace trireme::model {
namespace {

at::Tensor random(std::vector<int64_t> shape, double scale = 1) {
  static at::Generator generator =
      at::detail::createCPUGenerator(7);  // the same numbers in every run
  return at::randn(shape, generator, at::TensorOptions().dtype(at::kFloat)).mul(scale);
}

double largest(const at::Tensor& x) { return x.abs().max().item<double>(); }

// Rounding of the result allowed once more than in the reference: half a unit of the type, plus
// fp32 noise.
void expect_close(const at::Tensor& got, const at::Tensor& want, double relative,
                  const char* what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  const at::Tensor g = got.to(at::kDouble), w = want.to(at::kDouble);
  EXPECT_LE(largest(g.sub(w)), relative * (largest(w) + 1e-30)) << what;
}

struct Run {
  at::Tensor y;
  std::vector<at::Tensor> gradients;
};

// y = f(inputs) and the gradients of sum(y * slope), with inputs of `type`.
template <class F>
Run run(F&& f, std::vector<at::Tensor> inputs, const at::Tensor& slope, at::ScalarType type) {
  for (auto& input : inputs) input = input.to(type).detach().clone().requires_grad_(true);
  const at::Tensor y = f(inputs);
  y.mul(slope.to(type)).sum().backward();
  Run out{y.detach(), {}};
  for (const auto& input : inputs) out.gradients.push_back(input.grad());
  return out;
}

// Fused in fp32 and bf16 against the composed form in fp64 on the same (rounded) inputs.
template <class Fused, class Composed>
void compare(Fused&& fused, Composed&& composed, std::vector<at::Tensor> inputs,
             const at::Tensor& slope) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (auto& input : inputs) input = input.to(type).to(at::kFloat);
    const at::Tensor rounded_slope = slope.to(type).to(at::kFloat);
    const double tolerance = type == at::kFloat ? 3e-6 : 8e-3;
    const Run got = run(fused, inputs, rounded_slope, type);
    const Run want = run(composed, inputs, rounded_slope, at::kDouble);
    EXPECT_EQ(got.y.scalar_type(), type);
    expect_close(got.y, want.y, tolerance, "value");
    for (size_t i = 0; i < inputs.size(); ++i)
      expect_close(got.gradients[i], want.gradients[i], tolerance, "gradient");
  }
}

TEST(Elementwise, rms_norm_matches_the_composed_form) {
  // With one column the gradient of x cancels to nothing and has no relative error.
  for (const int64_t columns : {5, 15, 16, 33, 576}) {
    compare([](const auto& in) { return rms_norm(in[0], in[1], 1e-5); },
            [](const auto& in) { return rms_norm_composed(in[0], in[1], 1e-5); },
            {random({131, columns}), random({columns})}, random({131, columns}));
  }
}

TEST(Elementwise, rms_norm_in_bf16_rounds_where_the_composed_form_does) {
  const at::Tensor x = random({40, 576}, 3).to(at::kBFloat16), w = random({576}).to(at::kBFloat16);
  const at::Tensor got = rms_norm(x, w, 1e-5), want = rms_norm_composed(x, w, 1e-5);
  // The sums differ in order, so a value may fall on the other side of a rounding boundary now and
  // then.
  EXPECT_LE(got.ne(want).sum().item<int64_t>(), x.numel() / 200);
}

TEST(Elementwise, swiglu_matches_the_composed_form) {
  for (const int64_t columns : {7, 16, 1536}) {
    compare([](const auto& in) { return swiglu(in[0], in[1]); },
            [](const auto& in) { return swiglu_composed(in[0], in[1]); },
            {random({33, columns}, 4), random({33, columns})}, random({33, columns}));
  }
}

TEST(Elementwise, norms_of_other_families_match_their_composed_forms) {
  for (const NormKind kind : {NormKind::rms_offset, NormKind::centred}) {
    for (const int64_t columns : {5, 16, 33, 576}) {
      compare([&](const auto& in) { return rms_norm(in[0], in[1], 1e-5, kind); },
              [&](const auto& in) { return rms_norm_composed(in[0], in[1], 1e-5, kind); },
              {random({131, columns}).add(0.5), random({columns})}, random({131, columns}));
    }
  }
}

TEST(Elementwise, gelu_gates_match_the_composed_form) {
  for (const int64_t columns : {7, 16, 1536}) {
    compare([](const auto& in) { return swiglu(in[0], in[1], GateKind::gelu_tanh); },
            [](const auto& in) { return swiglu_composed(in[0], in[1], GateKind::gelu_tanh); },
            {random({33, columns}, 4), random({33, columns})}, random({33, columns}));
  }
}

TEST(Elementwise, xielu_matches_the_composed_form) {
  const at::Tensor beta = at::scalar_tensor(0.5), eps = at::scalar_tensor(-1e-6);
  for (const int64_t columns : {7, 16, 300}) {
    compare([&](const auto& in) { return xielu(in[0], in[1], in[2], beta, eps); },
            [&](const auto& in) { return xielu_composed(in[0], in[1], in[2], beta, eps); },
            {random({133, columns}, 4), at::tensor({0.3f}), at::tensor({-0.7f})},
            random({133, columns}));
  }
}

TEST(Elementwise, swiglu_at_extreme_gates) {
  const at::Tensor gate =
      at::tensor({-1000.f, -100.f, -20.f, -1e-8f, 0.f, 1e-8f, 20.f, 100.f, 1000.f});
  const at::Tensor y = swiglu(gate, at::ones_like(gate));
  const at::Tensor want = at::silu(gate.to(at::kDouble));
  EXPECT_LE(largest(y.to(at::kDouble).sub(want).div(want.abs().clamp_min(1e-6))), 1e-5);
}

TEST(Elementwise, rope_matches_the_composed_form) {
  config::ModelShape shape;
  for (const int64_t head_dim : {16, 64, 80}) {
    shape.head_dim = head_dim;
    const Rope rope = make_rope(rotation_of(shape), 512, at::kCPU);
    const at::Tensor positions = at::randint(0, 512, {70}, at::TensorOptions().dtype(at::kLong));
    const auto fused = [&](const auto& in) {
      return at::cat({apply_rope(in[0], positions, rope), apply_rope(in[1], positions, rope)}, 1);
    };
    const auto composed = [&](const auto& in) {
      return at::cat({apply_rope_composed(in[0], positions, rope),
                      apply_rope_composed(in[1], positions, rope)},
                     1);
    };
    compare(fused, composed, {random({70, 6, head_dim}), random({70, 2, head_dim})},
            random({70, 8, head_dim}));
  }
}

TEST(Elementwise, rope_of_neighbours_and_of_parts_matches_the_composed_form) {
  config::ModelShape shape;
  shape.head_dim = 80;
  for (const int64_t dims : {0, 6, 32, 60}) {
    shape.rotary_dims = dims;
    const Rope rope = make_rope(rotation_of(shape), 512, at::kCPU);
    const at::Tensor positions = at::randint(0, 512, {70}, at::TensorOptions().dtype(at::kLong));
    for (const bool interleaved : {false, true}) {
      compare(
          [&](const auto& in) { return apply_rope(in[0], positions, rope, interleaved); },
          [&](const auto& in) { return apply_rope_composed(in[0], positions, rope, interleaved); },
          {random({70, 6, 80})}, random({70, 6, 80}));
    }
  }
}

TEST(Elementwise, embedding_gradient_sums_repeated_tokens_in_fp32) {
  const at::Tensor ids = at::zeros({4096}, at::TensorOptions().dtype(at::kLong));
  const at::Tensor weight = random({3, 8}).to(at::kBFloat16).requires_grad_(true);
  embedding_rows(weight, ids).sum().backward();
  // Adding 1 in bf16 gets stuck at 256.
  EXPECT_EQ(weight.grad().select(0, 0).to(at::kFloat).min().item<float>(), 4096.f);
  EXPECT_EQ(largest(weight.grad().narrow(0, 1, 2)), 0.0);
}

TEST(Elementwise, norm_gradient_reaches_an_fp32_buffer_of_a_bf16_leaf) {
  at::Tensor weight = at::ones({64}, at::TensorOptions().dtype(at::kBFloat16)).requires_grad_(true);
  weight.set_grad_dtype(at::kFloat);
  at::Tensor buffer = at::zeros({64}, at::TensorOptions().dtype(at::kFloat));
  weight.mutable_grad() = buffer;
  rms_norm(random({32, 64}).to(at::kBFloat16), weight, 1e-5).to(at::kFloat).sum().backward();
  EXPECT_EQ(weight.grad().data_ptr(), buffer.data_ptr());
  EXPECT_GT(largest(buffer), 0.0);
}

TEST(Elementwise, results_do_not_depend_on_the_number_of_threads) {
  const at::Tensor x = random({777, 96}).requires_grad_(true),
                   w = random({96}).requires_grad_(true);
  const auto gradient = [&](int threads) {
    at::set_num_threads(threads);
    w.mutable_grad() = at::Tensor();
    rms_norm(x, w, 1e-5).square().sum().backward();
    return w.grad().clone();
  };
  const at::Tensor one = gradient(1), two = gradient(2);
  at::set_num_threads(1);
  EXPECT_TRUE(at::equal(one, two));
}

TEST(Elementwise, no_rows) {
  const at::Tensor x = at::zeros({0, 32}).requires_grad_(true),
                   w = at::ones({32}).requires_grad_(true);
  rms_norm(x, w, 1e-5).sum().backward();
  EXPECT_EQ(largest(w.grad()), 0.0);
  EXPECT_EQ(swiglu(x, x).numel(), 0);
}

#if defined(__x86_64__)
// Every instruction set of this CPU must give the bits of the generic code.
template <class T>
void expect_same_bits(const RowKernels<T>& a, const RowKernels<T>& b, const at::Tensor& x,
                      const at::Tensor& w, const at::Tensor& dy, NormKind kind, GateKind gate,
                      RotaryPairs pairs) {
  const auto* in = static_cast<const T*>(x.const_data_ptr());
  const auto* weight = static_cast<const T*>(w.const_data_ptr());
  const auto* slope = static_cast<const T*>(dy.const_data_ptr());
  const int64_t rows = x.size(0), columns = x.size(1);
  const auto results = [&](const RowKernels<T>& kernels) {
    std::vector<T> y(static_cast<size_t>(8 * x.numel()));
    std::vector<float> r(static_cast<size_t>(rows)), dw(static_cast<size_t>(columns)), slopes(2);
    const std::vector<float> cosines(40, 0.6f), sines(40, -0.8f);
    const std::vector<int64_t> positions(static_cast<size_t>(rows), 0);
    T* out = y.data();
    const NormRows<T> normed{in, weight, rows, columns, kind};
    kernels.rms_norm(normed, 1e-5f, out, r.data());
    kernels.rms_norm_backward(normed, r.data(), slope, out + x.numel(), dw.data());
    const GatedElements<T> gated{in, slope, x.numel(), gate};
    kernels.swiglu(gated, out + 2 * x.numel());
    kernels.swiglu_backward(gated, in, out + 3 * x.numel(), out + 4 * x.numel());
    const Xielu numbers{0.7f, 0.9f, 0.5f, -1e-6f};
    kernels.xielu(in, out + 5 * x.numel(), x.numel(), numbers);
    kernels.xielu_backward(in, slope, out + 6 * x.numel(), slopes.data(), x.numel(), numbers);
    kernels.rope(in, out + 7 * x.numel(), {rows, 1, columns},
                 {positions.data(), cosines.data(), sines.data(), pairs}, 1.f);
    return std::tuple(y, r, dw, slopes);
  };
  EXPECT_TRUE(results(a) == results(b));
}

TEST(RowKernels, same_bits_on_every_instruction_set) {
  const at::Tensor x = random({9, 77}, 3), w = random({77}), dy = random({9, 77});
  std::vector<const RowKernelTable*> tables;
  if (base::best_isa() >= base::Isa::avx2) tables.push_back(&row_kernels_avx2);
  if (base::best_isa() >= base::Isa::avx512) tables.push_back(&row_kernels_avx512);
  const auto compare_all = [&](NormKind kind, GateKind gate, RotaryPairs pairs) {
    for (const auto* table : tables) {
      expect_same_bits(row_kernels_portable.f32, table->f32, x, w, dy, kind, gate, pairs);
      expect_same_bits(row_kernels_portable.bf16, table->bf16, x.to(at::kBFloat16),
                       w.to(at::kBFloat16), dy.to(at::kBFloat16), kind, gate, pairs);
    }
  };
  compare_all(NormKind::rms, GateKind::silu, {76, false});
  compare_all(NormKind::rms_offset, GateKind::gelu_tanh, {76, true});
  compare_all(NormKind::centred, GateKind::silu, {42, true});
}
#endif

TEST(RowKernels, one_row_gives_the_bits_of_many) {
  const at::Tensor x = random({65, 576}), w = random({576});
  const at::Tensor all = rms_norm(x, w, 1e-5);
  for (const int64_t row : {0, 1, 63, 64})
    EXPECT_TRUE(at::equal(rms_norm(x.narrow(0, row, 1), w, 1e-5), all.narrow(0, row, 1)));
}

// What a GPU's kernels are compared by at the start; the host's row kernels take the same test.
TEST(Elementwise, RowOperatorsAgreeWithLibTorchs) {
  EXPECT_EQ(row_operators_problem(at::kCPU), "");
  const at::NoGradGuard no_gradients;  // as `trireme score` asks
  EXPECT_EQ(row_operators_problem(at::kCPU), "");
}

}  // namespace
}  // namespace trireme::model
