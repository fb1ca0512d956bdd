// How the fused backend describes itself: its kernels and where its sums differ from the trainer's.
#include "torch/torch.hpp"

#include "fused_backend.hpp"

#include <algorithm>
#include <set>

#include "trireme/base/error.hpp"
#include "trireme/base/isa.hpp"
#include "trireme/kernels/int8_gemm.hpp"
#include "trireme/model/row_kernels.hpp"

namespace trireme::generate {

std::vector<std::string> FusedBackend::differences() const {
  std::set<std::string> out;
  if (comm_.size() > 1)
    out.insert(base::text("tensor parallelism adds the parts of ", comm_.size(), " ranks"));
  if (weights_.int8_bytes() > 0) {
    out.insert("generation multiplies with weights in 8 bits (generate.weights)");
    return {out.begin(), out.end()};
  }
  const auto check = [&](const ProgramLinear& linear, int64_t n, const kernels::GemmOrder& order) {
    const bool same = linear.bias >= 0 ? order.matches_with_bias : order.matches_library;
    if (!same) out.insert(kernels::describe(type_of(linear), linear.k, n, order));
  };
  for (size_t i = 0; i < orders_.size(); ++i) {
    const ProgramLinear& linear = program_.linears[i];
    check(linear, linear.n, orders_[i]);
    // The trainer multiplies the head in chunks of the vocabulary: the last one may be smaller.
    const int64_t rest = linear.n % kernels::vocabulary_chunk;
    if (!holds_logits(linear.out) || rest == 0) continue;
    kernels::GemmOrder order = order_of(linear, rest);
    order.matches_library = order.matches_library &&
                            std::min(order.block, linear.k) == std::min(orders_[i].block, linear.k);
    check(linear, rest, order);
  }
  return {out.begin(), out.end()};
}

std::vector<std::string> FusedBackend::describe() const {
  std::set<std::string> orders;
  for (size_t i = 0; i < orders_.size(); ++i) {
    if (weights_.int8(program_.linears[i].weight) != nullptr) continue;
    orders.insert(kernels::describe(type_of(program_.linears[i]), program_.linears[i].k,
                                    program_.linears[i].n, orders_[i]));
  }
  std::vector<std::string> lines{
      base::text("generation kernels: ", base::to_string(base::active_isa()), ", rows ",
                 model::row_kernels_target(), ", ", team_.size(), " threads")};
  if (team_.size() > 1) {
    lines.push_back(base::text(
        "threads meet ", program_.meetings(0, RowWork::repeated),
        " times a layer in steps of up to ", most_repeated_, " rows, ",
        program_.meetings(0, RowWork::shared), " times in others",
        fewest_whole_ > 0 ? base::text("; from ", fewest_whole_,
                                       " rows on, each thread multiplies rows of its own, ",
                                       program_.meetings(0, RowWork::whole))
                          : ""));
  }
  if (weights_.int8_bytes() > 0) {
    lines.push_back(base::text(
        "weights in 8 bits: ", base::human_bytes(static_cast<double>(weights_.int8_bytes())),
        " beside those in the model's type, a scale for ", kernels::int8_group, " of a row"));
  }
  if (sums_)
    lines.push_back(
        base::text("sums of the replica's ", comm_.size(), " ranks through ", sums_->kind()));
  for (const std::string& order : orders) lines.push_back("summation order " + order);
  return lines;
}

}  // namespace trireme::generate
