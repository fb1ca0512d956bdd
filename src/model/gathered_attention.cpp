#include "torch/torch.hpp"

#include "trireme/model/gathered_attention.hpp"

#include <algorithm>

#include "packed_attention.hpp"
#include "torch_compat.hpp"

namespace trireme::model {
void GatheredLengths::add(int64_t its_queries, int64_t its_keys) {
  queries.push_back(queries.back() + its_queries);
  keys.push_back(keys.back() + its_keys);
  most_queries = std::max(most_queries, its_queries);
  most_keys = std::max(most_keys, its_keys);
}

at::Tensor attend_gathered(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const Scores& scores, const GatheredLengths& lengths) {
  if (q.is_cuda() && scores.cap == 0)
    return compat::varlen_attention(
        q, k, v,
        {lengths.queries_device, lengths.keys_device, lengths.most_queries, lengths.most_keys},
        scores);
  const auto part = [](const at::Tensor& x, const std::vector<int64_t>& ends, size_t b) {
    return x.narrow(0, ends[b], ends[b + 1] - ends[b]);
  };
  std::vector<at::Tensor> out;
  for (size_t b = 0; b + 1 < lengths.queries.size(); ++b)
    out.push_back(attend_one(part(q, lengths.queries, b), part(k, lengths.keys, b),
                             part(v, lengths.keys, b), scores));
  return at::cat(out, 0);
}

}  // namespace trireme::model
