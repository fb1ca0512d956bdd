#include "torch/torch.hpp"

#include "trireme/ppo/advantages.hpp"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/kernels/scan.hpp"

namespace trireme::ppo {
namespace {

using at::Tensor;

Tensor host_column(const Tensor& x, at::ScalarType type, const Segments& segments,
                   const char* what) {
  VALIDATE(x.defined() && x.dim() == 1 && x.size(0) == segments.columns(), ExitCode::internal, what,
           " does not have one element per column");
  return x.detach().to(at::kCPU, type).contiguous();
}

kernels::Ragged ragged(const Segments& segments) {
  return {segments.cu_seqlens().data(), segments.sequences()};
}

// The last column of [begin, end) whose mask is 1, else the last column.
int64_t last_action(const uint8_t* mask, int64_t begin, int64_t end) {
  for (int64_t t = end - 1; t >= begin; --t) {
    if (mask[t] != 0) return t;
  }
  return end - 1;
}

// Adds the reward of one sequence: the turns' parts to their last actions, the rest to the last
// action of all. Sums of a column are rounded once: one turn gives the bits of no turns.
void add_rewards(double reward, const std::vector<Turn>& turns, const uint8_t* mask, int64_t begin,
                 int64_t end, float* columns) {
  const int64_t last = last_action(mask, begin, end);
  std::map<int64_t, double> sums;
  for (int64_t from = begin; const Turn& turn : turns) {
    const int64_t to = std::min(begin + turn.end, end);
    const int64_t own = from < to ? last_action(mask, from, to) : last;
    sums[mask[own] != 0 ? own : last] += double{turn.reward};
    from = std::max(from, to);
  }
  sums[last] += reward - double{reward_of(turns)};
  for (const auto& [column, sum] : sums) columns[column] += static_cast<float>(sum);
}

}  // namespace

Tensor token_rewards(const SequenceRewards& given, const Tensor& kl, const Tensor& mask,
                     const Segments& segments, double kl_coef,
                     const std::optional<config::Range>& clip_range) {
  const auto& [rewards, turns] = given;
  VALIDATE(std::ssize(rewards) == segments.sequences(), ExitCode::internal,
           "one reward per sequence, got ", rewards.size(), " for ", segments.sequences());
  VALIDATE(turns.empty() || turns.size() == rewards.size(), ExitCode::internal,
           "turns of each sequence or none, got ", turns.size(), " for ", rewards.size());
  const Tensor kl_column = host_column(kl, at::kFloat, segments, "kl");
  const Tensor mask_column = host_column(mask, at::kByte, segments, "mask");
  const uint8_t* is_action = mask_column.const_data_ptr<uint8_t>();
  Tensor out = kl_column * -std::max(kl_coef, 0.0);
  float* values = out.mutable_data_ptr<float>();
  const std::vector<Turn> no_turns;
  for (int64_t i = 0; i < segments.sequences(); ++i) {
    const int64_t begin = segments.cu_seqlens()[static_cast<size_t>(i)];
    const int64_t end = segments.cu_seqlens()[static_cast<size_t>(i) + 1];
    if (begin == end) continue;
    float reward = rewards[static_cast<size_t>(i)];
    if (clip_range)
      reward = std::clamp(reward, static_cast<float>((*clip_range)[0]),
                          static_cast<float>((*clip_range)[1]));
    add_rewards(double{reward}, turns.empty() ? no_turns : turns[static_cast<size_t>(i)], is_action,
                begin, end, values);
  }
  return out;
}

namespace {

// The action columns of all sequences one after the other: what scans see where gaps are skipped.
struct Actions {
  Actions(const Tensor& mask, const Segments& segments) {
    const uint8_t* is_action = mask.const_data_ptr<uint8_t>();
    std::vector<int64_t> columns, cu_seqlens{0};
    for (int64_t i = 0; i < segments.sequences(); ++i) {
      for (int64_t t = segments.cu_seqlens()[static_cast<size_t>(i)];
           t < segments.cu_seqlens()[static_cast<size_t>(i) + 1]; ++t) {
        if (is_action[t] != 0) columns.push_back(t);
      }
      cu_seqlens.push_back(std::ssize(columns));
    }
    index = at::tensor(columns, at::kLong);
    actions = Segments(std::move(cu_seqlens));
    ones = at::ones({index.numel()}, at::kByte);
  }
  Tensor take(const Tensor& x) const { return at::index_select(x, 0, index); }
  Tensor put_back(const Tensor& x, int64_t columns) const {
    return at::zeros({columns}, x.options()).index_put({index}, x);
  }

  Tensor index;
  Segments actions;
  Tensor ones;
};

// GAE with one lambda for each sequence.
AdvantagesAndReturns scan(const Tensor& v, const Tensor& r, const Tensor& m,
                          const Segments& segments, double gamma,
                          const std::vector<double>& lambdas) {
  AdvantagesAndReturns out{at::empty_like(v), at::empty_like(v)};
  const kernels::ValuedColumns columns{v.const_data_ptr<float>(), r.const_data_ptr<float>(),
                                       m.const_data_ptr<uint8_t>()};
  const auto run = [&](int64_t first, int64_t count, double lambda) {
    kernels::gae({segments.cu_seqlens().data() + first, count}, columns, static_cast<float>(gamma),
                 static_cast<float>(lambda), out.advantages.mutable_data_ptr<float>(),
                 out.returns.mutable_data_ptr<float>());
  };
  for (size_t first = 0; first < lambdas.size();) {
    size_t last = first + 1;
    while (last < lambdas.size() && lambdas[last] == lambdas[first]) ++last;
    run(static_cast<int64_t>(first), static_cast<int64_t>(last - first), lambdas[first]);
    first = last;
  }
  return out;
}

}  // namespace

double policy_lambda(const GaeOptions& options, int64_t actions) {
  if (options.length_adaptive_alpha <= 0) return options.lambda;
  const double length = std::max(options.length_adaptive_alpha * static_cast<double>(actions), 1.0);
  return 1 - 1 / length;
}

AdvantagesAndReturns generalized_advantages(const Tensor& values, const Tensor& rewards,
                                            const Tensor& mask, const Segments& segments,
                                            const GaeOptions& options) {
  const Tensor v = host_column(values, at::kFloat, segments, "values");
  const Tensor r = host_column(rewards, at::kFloat, segments, "rewards");
  const Tensor m = host_column(mask, at::kByte, segments, "mask");
  if (options.gaps == config::AdvantageGaps::skip) {
    const Actions actions(m, segments);
    GaeOptions within = options;
    within.gaps = config::AdvantageGaps::decay;  // there are none
    const auto got = generalized_advantages(actions.take(v), actions.take(r), actions.ones,
                                            actions.actions, within);
    return {actions.put_back(got.advantages, segments.columns()),
            actions.put_back(got.returns, segments.columns())};
  }
  const Tensor counts = segments.sums(m.to(at::kLong));
  const int64_t* of_sequence = counts.const_data_ptr<int64_t>();
  std::vector<double> lambdas;
  for (int64_t i = 0; i < segments.sequences(); ++i)
    lambdas.push_back(policy_lambda(options, of_sequence[i]));
  auto out = scan(v, r, m, segments, options.gamma, lambdas);
  const double lambda_value = options.lambda_value.value_or(options.lambda);
  if (lambda_value != options.lambda || options.length_adaptive_alpha > 0) {
    lambdas.assign(lambdas.size(), lambda_value);
    out.returns = scan(v, r, m, segments, options.gamma, lambdas).returns;
  }
  return out;
}

Tensor cumulative_returns(const Tensor& rewards, const Tensor& mask, const Segments& segments,
                          double gamma, config::AdvantageGaps gaps) {
  const Tensor r = host_column(rewards, at::kFloat, segments, "rewards");
  const Tensor m = host_column(mask, at::kByte, segments, "mask");
  if (gaps == config::AdvantageGaps::skip) {
    const Actions actions(m, segments);
    return actions.put_back(
        cumulative_returns(actions.take(r), actions.ones, actions.actions, gamma),
        segments.columns());
  }
  Tensor out = at::empty_like(r);
  kernels::discounted_returns(ragged(segments), r.const_data_ptr<float>(),
                              m.const_data_ptr<uint8_t>(), static_cast<float>(gamma),
                              out.mutable_data_ptr<float>());
  return out;
}

Tensor whiten(const Tensor& advantages, const Tensor& mask, Whiten how, const Sum& sum) {
  const Tensor a = advantages.detach().to(at::kCPU, at::kFloat).contiguous();
  const Tensor m = mask.to(at::kCPU, at::kByte).contiguous();
  VALIDATE(a.numel() == m.numel(), ExitCode::internal,
           "whiten: mask and advantages differ in length");
  const auto moments = [&](double center) {
    return kernels::masked_moments(a.const_data_ptr<float>(), m.const_data_ptr<uint8_t>(),
                                   a.numel(), center);
  };
  const auto local = moments(0);
  std::array<double, 2> totals{local.count, local.sum};
  sum(totals);
  const double count = std::max(totals[0], 1.0);
  const double mean = totals[1] / count;
  if (how == Whiten::center) return a - mean;
  std::array<double, 1> squares{
      moments(mean).squares};  // around the mean of all ranks: no cancellation
  sum(squares);
  if (how == Whiten::unbiased) {
    const double variance = squares[0] / std::max(totals[0] - 1, 1.0);
    return select((a - mean) * (1 / std::sqrt(variance + 1e-8)), m);
  }
  return (a - mean) * (1 / std::sqrt(std::max(squares[0] / count, 1e-8)));
}

}  // namespace trireme::ppo
