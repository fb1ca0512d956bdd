#include "torch/torch.hpp"

#include "packed_attention.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <limits>
#include <optional>

#include "trireme/kernels/parallel.hpp"
#include "trireme/kernels/training_attention.hpp"

namespace trireme::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct Tensors {
  const at::Tensor &q, &k, &v, &out, &log_sum_exp;
  Scores scores;
};

template <class T>
T* at_element(const at::Tensor& x, int64_t element) {
  return static_cast<T*>(const_cast<void*>(x.const_data_ptr())) + element;
}

// One KV group of the sequence that begins at token `first`: the work of one thread alone, or of
// all together.
struct Task {
  int64_t first, tokens, group;
};

template <class T>
kernels::AttentionForward<T> arguments(const Tensors& t, const Task& task,
                                       kernels::AttentionTeam* team) {
  const int64_t heads = t.q.size(1), kv_heads = t.k.size(1), head_dim = t.q.size(2);
  const int64_t head = task.first * heads + task.group * (heads / kv_heads);
  const int64_t kv = (task.first * kv_heads + task.group) * head_dim;
  return {at_element<T>(t.q, head * head_dim),
          at_element<T>(t.k, kv),
          at_element<T>(t.v, kv),
          at_element<T>(t.out, head * head_dim),
          at_element<float>(t.log_sum_exp, head),
          task.tokens,
          heads,
          kv_heads,
          head_dim,
          static_cast<float>(t.scores.scale),
          team,
          t.scores.window,
          static_cast<float>(t.scores.cap)};
}

// body(task, team) for every sequence and KV group on LibTorch's threads, the longest first; each
// writes its own results. Where that would leave threads idle, all of them take part in each:
// `make_team(task)` is what they share then.
template <class MakeTeam, class Body>
void for_groups(const std::vector<int64_t>& cu_seqlens, int64_t kv_heads, MakeTeam&& make_team,
                Body&& body) {
  std::vector<Task> tasks;
  std::vector<int64_t> lengths;
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    const int64_t tokens = cu_seqlens[s + 1] - cu_seqlens[s];
    for (int64_t group = 0; tokens > 0 && group < kv_heads; ++group)
      tasks.push_back({cu_seqlens[s], tokens, group});
  }
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const Task& x, const Task& y) { return x.tokens > y.tokens; });
  for (const Task& task : tasks) lengths.push_back(task.tokens);
  const int threads = at::get_num_threads();
  if (tasks_fill(lengths, threads)) {
    std::atomic<size_t> next{0};
    kernels::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t thread = begin; thread < end; ++thread) {
        for (size_t i = next++; i < tasks.size(); i = next++) body(tasks[i], nullptr);
      }
    });
    return;
  }
  std::deque<kernels::AttentionTeam> teams;
  for (const Task& task : tasks) teams.push_back(make_team(task));
  kernels::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      for (size_t i = 0; i < tasks.size(); ++i) body(tasks[i], &teams[i]);
    }
  });
}

struct PackedAttention : Function<PackedAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q_in,
                            const at::Tensor& k_in, const at::Tensor& v_in, const Scores& scores,
                            const std::vector<int64_t>& cu_seqlens) {
    const at::Tensor q = q_in.contiguous(), k = k_in.contiguous(), v = v_in.contiguous();
    const at::Tensor out = at::empty_like(q);
    const at::Tensor log_sum_exp = at::empty({q.size(0), q.size(1)}, q.options().dtype(at::kFloat));
    const Tensors tensors{q, k, v, out, log_sum_exp, scores};
    const int64_t heads_of_group = q.size(1) / k.size(1);
    const auto team_of = [&](const Task& task) {
      return kernels::AttentionTeam(task.tokens, heads_of_group);
    };
    for_groups(cu_seqlens, k.size(1), team_of, [&](const Task& task, kernels::AttentionTeam* team) {
      if (q.scalar_type() == at::kFloat) {
        kernels::attention_forward(arguments<float>(tensors, task, team));
      } else {
        kernels::attention_forward(arguments<uint16_t>(tensors, task, team));
      }
    });
    context->save_for_backward({q, k, v, out, log_sum_exp});
    context->saved_data["cu_seqlens"] = cu_seqlens;
    context->saved_data["scale"] = scores.scale;
    context->saved_data["window"] = scores.window;
    context->saved_data["cap"] = scores.cap;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    auto& numbers = context->saved_data;
    const Tensors tensors{
        saved[0],
        saved[1],
        saved[2],
        saved[3],
        saved[4],
        {numbers["scale"].toDouble(), numbers["window"].toInt(), numbers["cap"].toDouble()}};
    const at::Tensor dout = gradients[0].contiguous();
    const at::Tensor dq = at::empty_like(tensors.q), dk = at::empty_like(tensors.k),
                     dv = at::empty_like(tensors.v);
    const int64_t heads_of_group = tensors.q.size(1) / tensors.k.size(1),
                  head_dim = tensors.q.size(2);
    const auto team_of = [&](const Task& task) {
      return kernels::AttentionTeam(task.tokens, heads_of_group, head_dim);
    };
    for_groups(
        context->saved_data["cu_seqlens"].toIntVector(), tensors.k.size(1), team_of,
        [&](const Task& task, kernels::AttentionTeam* team) {
          const auto run = [&]<class T>(T*) {
            const auto offset = [&](const T* of, const at::Tensor& in) {
              return of - at_element<T>(in, 0);
            };
            const auto a = arguments<T>(tensors, task, team);
            const int64_t query = offset(a.q, tensors.q), key = offset(a.k, tensors.k);
            kernels::attention_backward({a, at_element<T>(dout, query), at_element<T>(dq, query),
                                         at_element<T>(dk, key), at_element<T>(dv, key)});
          };
          if (dout.scalar_type() == at::kFloat) {
            run(static_cast<float*>(nullptr));
          } else {
            run(static_cast<uint16_t*>(nullptr));
          }
        });
    return {dq, dk, dv, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

bool tasks_fill(std::span<const int64_t> lengths, int threads) {
  if (threads == 1) return true;
  std::vector<double> busy(static_cast<size_t>(threads), 0);
  double all = 0;
  for (const int64_t length : lengths) {
    const auto work = static_cast<double>(length) * static_cast<double>(length);
    *std::min_element(busy.begin(), busy.end()) += work;
    all += work;
  }
  constexpr double idle =
      1.15;  // beyond it, what threads cost that each pack keys and values is less
  return *std::max_element(busy.begin(), busy.end()) <= idle * all / threads;
}

namespace {

// True where query i, at position keys - queries + i, sees key j: [queries, keys]. Nothing where
// every query sees all.
std::optional<at::Tensor> seen_keys(int64_t queries, int64_t keys, int64_t window,
                                    at::Device device) {
  const bool all = window == 0 || keys <= window;
  if (queries == 1 && all) return std::nullopt;
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  const at::Tensor key = at::arange(keys, options).unsqueeze(0),
                   query = at::arange(keys - queries, keys, options).unsqueeze(1);
  const at::Tensor before = at::le(key, query);
  return all ? before : at::logical_and(before, at::gt(key, query.sub(window)));
}

at::Tensor attend_capped(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const Scores& scores) {
  const int64_t queries = q.size(0), kv_heads = k.size(1), group = q.size(1) / kv_heads;
  const auto wide = [](const at::Tensor& x) {
    return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  };
  const at::Tensor grouped =
      wide(q).reshape({queries, kv_heads, group, -1}).permute({1, 2, 0, 3}).flatten(1, 2);
  const at::Tensor keys = wide(k).permute({1, 2, 0}), values = wide(v).transpose(0, 1);
  at::Tensor products = grouped.matmul(keys).mul(scores.scale / scores.cap).tanh().mul(scores.cap);
  if (const auto seen = seen_keys(queries, k.size(0), scores.window, q.device())) {
    const at::Tensor hidden = at::logical_not(*seen).unsqueeze(0).expand({group, -1, -1});
    products = products.masked_fill(hidden.flatten(0, 1), -std::numeric_limits<double>::infinity());
  }
  return products.softmax(-1)
      .to(v.scalar_type())
      .to(values.scalar_type())
      .matmul(values)
      .reshape({kv_heads, group, queries, -1})
      .permute({2, 0, 1, 3})
      .flatten(1, 2)
      .to(q.scalar_type());
}

}  // namespace

at::Tensor attend_one(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const Scores& scores) {
  if (scores.cap > 0) return attend_capped(q, k, v, scores);
  const int64_t queries = q.size(0), keys = k.size(0);
  const bool triangle = queries == keys && (scores.window == 0 || keys <= scores.window);
  const auto seen = triangle ? std::nullopt : seen_keys(queries, keys, scores.window, q.device());
  const auto heads_first = [](const at::Tensor& x) {
    return x.transpose(0, 1).unsqueeze(0);
  };  // [1, heads, S, hd]
  return at::scaled_dot_product_attention(heads_first(q), heads_first(k), heads_first(v), seen, 0.0,
                                          triangle, scores.scale, q.size(1) != k.size(1))
      .squeeze(0)
      .transpose(0, 1);
}

// Splitting costs one concatenation in the backward pass, where narrow() would add a full-size
// gradient per sequence.
at::Tensor attend_by_sequence(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const Scores& scores, const std::vector<int64_t>& cu_seqlens) {
  std::vector<int64_t> lengths;
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    if (cu_seqlens[i] > cu_seqlens[i - 1]) lengths.push_back(cu_seqlens[i] - cu_seqlens[i - 1]);
  }
  if (lengths.empty()) return q.add(k.sum()).add(v.sum());  // no tokens: keeps the graph connected
  const auto qs = q.split_with_sizes(lengths), ks = k.split_with_sizes(lengths),
             vs = v.split_with_sizes(lengths);
  std::vector<at::Tensor> out;
  for (size_t i = 0; i < lengths.size(); ++i)
    out.push_back(attend_one(qs[i], ks[i], vs[i], scores));
  return out.size() == 1 ? out.front() : at::cat(out, 0);
}

at::Tensor attend_packed(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const Scores& scores, const std::vector<int64_t>& cu_seqlens) {
  const auto type = q.scalar_type();
  const bool ours = q.device().is_cpu() && (type == at::kFloat || type == at::kBFloat16) &&
                    k.scalar_type() == type && v.scalar_type() == type;
  return ours ? PackedAttention::apply(q, k, v, scores, cu_seqlens)
              : attend_by_sequence(q, k, v, scores, cu_seqlens);
}

}  // namespace trireme::model
