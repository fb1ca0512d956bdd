#include "torch/torch.hpp"

#include "trireme/model/gathered_attention.hpp"

#include <algorithm>

#include "torch_compat.hpp"

namespace trireme::model {
namespace {

// True where query i, at position keys - queries + i, may see key j: [queries, keys]. Nothing where
// there is one query: it sees all.
std::optional<at::Tensor> bottom_right_mask(int64_t queries, int64_t keys) {
  if (queries == 1) return std::nullopt;
  const auto options = at::TensorOptions().dtype(at::kLong);
  return at::le(at::arange(keys, options).unsqueeze(0),
                at::arange(keys - queries, keys, options).unsqueeze(1));
}

}  // namespace

void GatheredLengths::add(int64_t its_queries, int64_t its_keys) {
  queries.push_back(queries.back() + its_queries);
  keys.push_back(keys.back() + its_keys);
  most_queries = std::max(most_queries, its_queries);
  most_keys = std::max(most_keys, its_keys);
}

at::Tensor attend_gathered(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           double scale, const GatheredLengths& lengths) {
  if (q.is_cuda())
    return compat::varlen_attention(
        q, k, v,
        {lengths.queries_device, lengths.keys_device, lengths.most_queries, lengths.most_keys},
        scale);
  const auto part = [](const at::Tensor& x, const std::vector<int64_t>& ends,
                       size_t b) {  // [1, heads, positions, hd]
    return x.narrow(0, ends[b], ends[b + 1] - ends[b]).transpose(0, 1).unsqueeze(0);
  };
  std::vector<at::Tensor> out;
  for (size_t b = 0; b + 1 < lengths.queries.size(); ++b) {
    const auto mask = bottom_right_mask(lengths.queries[b + 1] - lengths.queries[b],
                                        lengths.keys[b + 1] - lengths.keys[b]);
    const at::Tensor attended = at::scaled_dot_product_attention(
        part(q, lengths.queries, b), part(k, lengths.keys, b), part(v, lengths.keys, b), mask, 0.0,
        false, scale, q.size(1) != k.size(1));
    out.push_back(attended.squeeze(0).transpose(0, 1));
  }
  return at::cat(out, 0);
}

}  // namespace trireme::model
