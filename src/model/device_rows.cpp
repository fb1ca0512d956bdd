#include "torch/torch.hpp"

#include "trireme/model/device_rows.hpp"

#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <vector>

#include "elementwise.hpp"
#include "trireme/base/text.hpp"
#include "trireme/kernels/token_log_probs.hpp"

namespace trireme::model {

std::string row_operators_problem(at::Device device) {
  const at::AutoGradMode with_gradients(true);  // whoever asks
  constexpr int64_t tokens = 70, heads = 3, head_dim = 64,
                    columns = heads * head_dim;  // more than one chunk of rows
  std::string problem;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const double tolerance =
        type == at::kFloat ? 1e-5 : 5e-2;  // bf16: sums of rounded values of either sign
    const auto values = [&](at::IntArrayRef shape,
                            double frequency) {  // all sizes and signs, none at random
      const at::Tensor steps =
          at::arange(tokens * columns, at::TensorOptions().dtype(at::kFloat).device(device))
              .mul(frequency);
      return steps.sin()
          .mul(2)
          .narrow(0, 0, c10::multiply_integers(shape))
          .view(shape)
          .to(type)
          .requires_grad_(true);
    };
    const at::Tensor x = values({tokens, columns}, 0.37), up = values({tokens, columns}, 0.11),
                     weight = values({columns}, 0.73);
    const at::Tensor slope = values({tokens, columns}, 0.19).detach();
    const at::Tensor positions =
        at::arange(tokens, at::TensorOptions().dtype(at::kLong).device(device));
    const at::Tensor angles =
        at::arange(tokens * head_dim / 2, at::TensorOptions().dtype(at::kFloat).device(device))
            .mul(0.01)
            .view({tokens, -1});
    const Rope rope{angles.cos(), angles.sin()};
    const auto compare = [&](const char* name, const at::Tensor& ours, const at::Tensor& composed,
                             const std::vector<at::Tensor>& inputs) {
      const at::Tensor slopes = slope.flatten().narrow(0, 0, ours.numel()).view_as(ours);
      auto mine = torch::autograd::grad({ours}, inputs, {slopes.to(ours.scalar_type())});
      auto theirs = torch::autograd::grad({composed}, inputs, {slopes.to(composed.scalar_type())});
      mine.push_back(ours);
      theirs.push_back(composed);
      for (size_t i = 0; i < mine.size(); ++i) {
        const double scale = std::max(1.0, theirs[i].abs().max().to(at::kDouble).item<double>());
        const double error =
            mine[i].to(at::kDouble).sub(theirs[i].to(at::kDouble)).abs().max().item<double>() /
            scale;
        if (!(error <= tolerance) && problem.empty())
          problem =
              base::text(name, " in ", c10::toString(type), " differs from LibTorch's by ", error);
      }
    };
    // What LibTorch composes of bf16 rounds at each step, its sums over rows most of all: the
    // reference goes through fp32.
    const at::Tensor wide = x.to(at::kFloat);
    compare("rms_norm", rms_norm(x, weight, 1e-5),
            rms_norm_composed(wide, weight.to(at::kFloat), 1e-5), {x, weight});
    compare("swiglu", swiglu(x, up), swiglu_composed(wide, up.to(at::kFloat)), {x, up});
    const at::Tensor q = x.view({tokens, heads, head_dim});
    compare("rope", apply_rope(q, positions, rope),
            apply_rope_composed(wide.view(q.sizes()), positions, rope), {x});
    // As many ids as tokens, and logits so small that rounding them to bf16 moves a probability by
    // less than is tolerated.
    const at::Tensor rows = values({tokens, columns}, 0.23).detach().mul(0.05).requires_grad_(true),
                     targets = positions.flip({0});
    const auto head =
        kernels::token_log_probs(x, rows, targets, 0.5, kernels::Entropy::differentiable, {32});
    const at::Tensor all = at::log_softmax(at::mm(wide, rows.to(at::kFloat).t()).div(0.5), 1);
    const at::Tensor of_targets = all.gather(1, targets.unsqueeze(1)).squeeze(1);
    compare("head", head.log_probs.add(head.entropy), of_targets.sub(all.exp().mul(all).sum(1)),
            {x, rows});
  }
  return problem;
}

}  // namespace trireme::model
