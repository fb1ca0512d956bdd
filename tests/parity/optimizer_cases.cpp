// Learning rates, AdamW, the KL coefficient's controller and the moving average against
// transformers, torch and OpenRLHF (LR, OPT, F26, F27).
#include "torch/torch.hpp"

#include <cmath>

#include "parity/cases.hpp"
#include "parity/registry.hpp"
#include "trireme/kernels/adamw.hpp"
#include "trireme/ppo/kl.hpp"
#include "trireme/zero/schedule.hpp"

namespace trireme::test {

using at::Tensor;

void check_kl_controller(const GoldenCase& c) {
  std::vector<double> values{*c.number("init_kl_coef")};
  const Tensor current = c.input("current").to(at::kDouble);
  for (int64_t i = 0; i < current.numel(); ++i) {
    values.push_back(ppo::adapt_kl_coefficient(values.back(), current[i].item<double>(),
                                               *c.number("target"), *c.number("n_steps"),
                                               *c.number("horizon")));
  }
  expect_matches(c, "value", at::tensor(values, at::kDouble));
}

void check_moving_average(const GoldenCase& c) {
  const Tensor params = c.input("params").contiguous();
  Tensor average = c.input("ema_start").reshape({-1}).clone();
  std::vector<Tensor> states;
  const auto every = *c.flag("dynamic_batch")
                         ? int64_t{1}
                         : static_cast<int64_t>(*c.number("gradient_accumulation"));
  for (int64_t k = 0; k < params.size(0); ++k) {
    const Tensor now = params.select(0, k).reshape({-1}).contiguous();
    if ((k + 1) % every == 0)
      kernels::moving_average(average.data_ptr<float>(), now.const_data_ptr<float>(),
                              *c.number("beta"), now.numel());
    states.push_back(average.clone());
  }
  expect_matches(c, "ema", at::stack(states));
}

void check_learning_rate(const GoldenCase& c) {
  config::OptimizerOptions options;
  options.adam.lr = c.number("base_lr").value();
  options.lr_scheduler = choice(c, "scheduler", config::LrScheduler::cosine_with_min_lr);
  options.warmup_ratio = c.number("warmup_ratio").value();
  options.min_lr_ratio = c.number("min_lr_ratio").value();
  const zero::LearningRate rate(options, static_cast<int64_t>(c.number("steps").value()));
  EXPECT_EQ(rate.warmup_steps(), static_cast<int64_t>(c.number("warmup_steps").value()));
  Tensor got = at::zeros(c.output("lr").sizes(), at::kDouble);
  for (int64_t k = 0; k < got.numel(); ++k) got[k] = rate.at(k);
  expect_matches(c, "lr", got);
  expect_matches(c, "factor", got.div(options.adam.lr));
}

namespace {

kernels::AdamWShard shard_of(Tensor& p, Tensor& m, Tensor& v, const Tensor& g) {
  kernels::AdamWShard shard;
  shard.master = p.data_ptr<float>();
  shard.moment1 = m.data_ptr<float>();
  shard.moment2 = v.data_ptr<float>();
  shard.gradient = g.data_ptr<float>();
  shard.elements = p.numel();
  return shard;
}

}  // namespace

// Two parameters, as the case has them; weight decay on the first only. Row k of the outputs is the
// state after step k.
void check_adamw(const GoldenCase& c) {
  Tensor w = c.input("w0").clone(), norm = c.input("norm0").clone();
  const Tensor w_grads = c.input("w_grads").contiguous(),
               norm_grads = c.input("norm_grads").contiguous();
  Tensor wm = at::zeros_like(w), wv = at::zeros_like(w), nm = at::zeros_like(norm),
         nv = at::zeros_like(norm);
  const auto factors = c.numbers("lr_factors");
  const auto betas = c.numbers("betas");
  std::vector<Tensor> w_states, norm_states;
  Tensor norms = at::zeros({w_grads.size(0)}, at::kDouble);
  for (int64_t k = 0; k < w_grads.size(0); ++k) {
    const Tensor wg = w_grads.select(0, k).contiguous(), ng = norm_grads.select(0, k).contiguous();
    const double grad_norm = std::sqrt(kernels::squared_norm(wg.data_ptr<float>(), wg.numel()) +
                                       kernels::squared_norm(ng.data_ptr<float>(), ng.numel()));
    norms[k] = grad_norm;
    kernels::AdamWStep step;
    step.lr = c.number("lr").value() * (factors.empty() ? 1 : factors[static_cast<size_t>(k)]);
    step.beta1 = betas[0];
    step.beta2 = betas[1];
    step.eps = c.number("eps").value();
    step.weight_decay = c.number("weight_decay").value();
    step.clip_factor = kernels::clip_factor(grad_norm, c.number("clip").value());
    step.step = k + 1;
    kernels::adamw(shard_of(w, wm, wv, wg), step);
    step.weight_decay = 0;
    kernels::adamw(shard_of(norm, nm, nv, ng), step);
    w_states.push_back(w.clone());
    norm_states.push_back(norm.clone());
  }
  expect_matches(c, "w", at::stack(w_states));
  expect_matches(c, "norm", at::stack(norm_states));
  expect_matches(c, "grad_norm", norms);
}

}  // namespace trireme::test
