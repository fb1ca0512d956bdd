// Whole optimizer steps on a GPU against the same steps on CPUs.
#include "torch/torch.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "gpu/device.hpp"
#include "support/world.hpp"
#include "trireme/kernels/device_kernels.hpp"
#include "trireme/kernels/device_product.hpp"
#include "trireme/kernels/products.hpp"
#include "trireme/kernels/token_log_probs.hpp"
#include "trireme/model/device_rows.hpp"
#include "unit/zero/tiny_model.hpp"

namespace trireme::test {
namespace {

struct Trained {
  std::vector<at::Tensor> masters;  // this rank's rows, on the host; undefined where it has none
  std::vector<double> norms;
  std::string kind;
};

// - sum of next-token log-probabilities / 100, with its indices on the batch's device.
zero::Loss language_loss(const model::PackedBatch& batch) {
  std::vector<int64_t> rows;
  for (size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
    for (int64_t t = batch.cu_seqlens[s]; t + 1 < batch.cu_seqlens[s + 1]; ++t) rows.push_back(t);
  }
  const at::Tensor index = at::tensor(rows, at::kLong).to(batch.ids.device());
  const at::Tensor targets = batch.ids.index_select(0, index.add(1));
  return [index, targets](const at::Tensor& hidden, const at::Tensor& head_weight) {
    const auto out = kernels::token_log_probs(hidden.index_select(0, index), head_weight, targets,
                                              1.0, kernels::Entropy::skip);
    return out.log_probs.sum().div(-100);
  };
}

Trained train(const model::ModelSpec& spec, at::Device device, config::DType compute,
              int64_t recompute) {
  zero::ShardedModelOptions options;
  options.compute = compute;
  options.recompute = recompute;
  zero::ShardedModel model(spec, world(), std::nullopt, device, options);
  model.load([&spec](size_t p, const base::Block& block, float* out) {
    initial_rows(spec, p, block, out);
  });
  Trained out;
  out.kind = model.exchange_kind();
  for (int step = 0; step < 3; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      const auto batch = to_device(tiny_work(spec.shape, world().rank(), 2 * step + micro), device);
      model.forward_backward(batch, language_loss(batch));
    }
    const auto result = model.step(adam());
    EXPECT_TRUE(result.updated);
    out.norms.push_back(result.grad_norm);
  }
  for (size_t p = 0; p < spec.parameters.size(); ++p) {
    const auto values = at::TensorOptions().dtype(at::kFloat).device(device);
    out.masters.push_back(model.own(p).empty() ? at::Tensor()
                                               : at::from_blob(model.master(p).address(),
                                                               {model.own(p).elements()}, values)
                                                     .cpu()
                                                     .clone());
  }
  return out;
}

model::ModelSpec small_spec(Tied tied) {
  config::ModelShape shape = tiny_shape(tied);
  shape.head_dim = 8;  // what the flash kernel of bf16 takes
  return model::describe(shape, model::HeadKind::language);
}

void expect_close(const Trained& got, const Trained& want, double norm_tolerance,
                  double weight_tolerance) {
  for (size_t step = 0; step < want.norms.size(); ++step) {
    EXPECT_NEAR(got.norms[step], want.norms[step], norm_tolerance * want.norms[step])
        << "step " << step;
  }
  for (size_t p = 0; p < want.masters.size(); ++p) {
    if (!want.masters[p].defined()) continue;
    const double scale = std::max(want.masters[p].abs().max().item<double>(), 1e-12);
    EXPECT_LE(got.masters[p].sub(want.masters[p]).abs().max().item<double>() / scale,
              weight_tolerance)
        << "parameter " << p;
  }
}

TEST(GpuTraining, Fp32StepsEqualThoseOfTheCpu) {
  for (const Tied tied : {Tied::no, Tied::yes}) {
    for (const int64_t recompute : {-1, 1}) {
      const auto spec = small_spec(tied);
      const auto got = train(spec, gpu(), config::DType::f32, recompute);
      EXPECT_EQ(got.kind,
                ranks_share_a_gpu() ? "MPI ring staged through host memory" : "NCCL ring");
      expect_close(got, train(spec, at::kCPU, config::DType::f32, recompute), 1e-4, 2e-4);
    }
  }
}

TEST(GpuTraining, Bf16StepsStayNearThoseOfTheCpu) {
  const auto spec = small_spec(Tied::yes);
  const auto got = train(spec, gpu(), config::DType::bf16, -1);
  // A step moves a weight by at most lr: three steps in the other direction would be an error of
  // 6e-2.
  expect_close(got, train(spec, at::kCPU, config::DType::bf16, -1), 5e-2, 3e-2);
}

TEST(GpuTraining, ProductsAddToFloatMatricesUnrounded) {
  ASSERT_NE(kernels::device_product(), nullptr) << "put aside at the start";
  EXPECT_EQ(kernels::exact_product_problem(gpu()), "");
  const auto values = [](at::IntArrayRef shape) {
    return at::randn(shape, at::TensorOptions().dtype(at::kFloat).device(gpu())).to(at::kBFloat16);
  };
  for (const auto& [m, k, n] :
       {std::array<int64_t, 3>{1, 1, 1}, {3, 70, 5}, {576, 2000, 192}, {4096, 512, 1024}}) {
    const at::Tensor a = values({k, m}).t(), b = values({k, n}),
                     sum = at::ones({m, n}, a.options().dtype(at::kFloat));
    kernels::multiply(sum, a, b, kernels::Sum::add);
    const at::Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble)),
                     magnitude = at::mm(a.to(at::kDouble).abs(), b.to(at::kDouble).abs());
    EXPECT_LT(
        sum.to(at::kDouble).sub(1).sub(exact).abs().div(magnitude.add(1)).max().item<double>(),
        1e-5)
        << m << " x " << k << " x " << n;
  }
}

TEST(GpuTraining, RowOperatorsAreOurOwnAndAgreeWithLibTorchs) {
  EXPECT_NE(kernels::device_kernels(), nullptr) << "put aside at the start";
  EXPECT_EQ(model::row_operators_problem(gpu()), "");
}

}  // namespace
}  // namespace trireme::test
