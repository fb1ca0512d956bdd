// The operations that a stage is a list of, each a struct with its own numbers, and one table with
// a row for each. A member `in`, `other` or `q`, `k`, `v` is read, `out` is written, `value` is
// changed in place; `weight` and `bias` are parameters of the stage. How an operation is computed,
// as tensors and on rows of a generation step: src/model/execute.cpp. Legend: T tokens, H heads, K
// KV heads, hd head size.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "trireme/model/parameter.hpp"
#include "trireme/model/row_kernels.hpp"

namespace trireme::model {

// An activation between the operations, [T, width]. ModelSpec counts them; the builder of a model
// (src/model/block.cpp) gives out the ids.
struct Value {
  uint8_t id = 0;
  bool operator==(const Value&) const = default;
};
inline constexpr Value residual{0};  // the residual stream, which each stage hands to the next

// out = the weight's rows, by token id; or its columns.
struct LookUp {
  Value out;
  Role weight;
  bool columns = false;
};
// Norm of whole rows, or of each head of `head_dim` elements.
struct Norm {
  Value in, out;
  Role weight;
  double eps;
  int64_t head_dim = 0;  // 0: whole rows
  NormKind kind = NormKind::rms;
};
// The value is needed whole on every tensor-parallel rank; backward the sum of the ranks'
// gradients.
struct Spread {
  Value value;
};
// out = in weight^T + bias. An adapter's term is computed by operations of its own
// (model/adapter.hpp).
struct Linear {
  Value in, out;
  Role weight;
  std::optional<Role> bias;
};
// Rotary embedding of heads, by a table of ModelSpec::rotations.
struct Rotate {
  Value value;
  int64_t head_dim;
  size_t table = 0;
  bool interleaved = false;  // pairs are neighbours, not the halves of what is rotated
};
// Which keys attention weighs, and how.
struct Scores {
  Scores(double its_scale = 1, int64_t its_window = 0, double its_cap = 0)
      : scale(its_scale), window(its_window), cap(its_cap) {}
  double scale;
  int64_t window;  // keys that a query sees, its own included; 0: all before it
  double cap;      // above 0: scores are cap * tanh(scale q k^T / cap)
  bool plain() const { return window == 0 && cap == 0; }
};
// Causal attention: softmax(scale q k^T) v. [T, H*hd], keys and values [T, K*hd].
struct Attend {
  Value q, k, v, out;
  int64_t head_dim;
  Scores scores;
};
// out = activation(in) * other.
struct Gate {
  Value in, other, out;
  GateKind kind = GateKind::silu;
};
// out = xIELU(in), whose four numbers are parameters.
struct Activate {
  Value in, out;
  std::array<Role, 4> weights;  // alpha_p, alpha_n, beta, eps
};
// The sum over the tensor-parallel ranks.
struct Reduce {
  Value value;
};
// out = in + other.
struct Add {
  Value in, other, out;
  bool last = false;  // `other` is read nowhere else: its memory is given back
};
// value + weight, in each row.
struct AddBias {
  Value value;
  Role weight;
};

// value * factor.
struct Scale {
  Value value;
  double factor;
  bool rounded = false;  // the factor too, to the value's type
};
// value * (1 + beta * log(1 + floor(position / period))).
struct ScaleByPosition {
  Value value;
  double beta;
  int64_t period;
};

// In training out = in with a share of its elements 0 and the others divided by the rest; else in.
struct Drop {
  Value in, out;
  double share;
};

// Rows of sequences that have another adapter, or none, become 0.
struct Select {
  Value value;
  int32_t adapter;
};

using Operation = std::variant<LookUp, Norm, Spread, Linear, Rotate, Attend, Gate, Reduce, Add,
                               AddBias, Scale, Activate, ScaleByPosition, Drop, Select>;

// How far the elements that an operation writes depend on others of the row that it reads; tells
// what may be computed apart from the rest.
enum class Division : uint8_t {
  rows,     // on all of them
  heads,    // on those of the same head
  columns,  // on those of the same column
};

// Values that backward reads again. `reads` has a bit for each value that the operation reads.
struct Kept {
  uint8_t reads = 0;
  bool result = false;
  int copies = 0;          // copies of the first value read, in the compute type
  int wide = 0;            // copies of it in fp32
  bool statistic = false;  // an fp32 number for each row, or head
};

struct OperationRow {
  std::string_view name;
  Division division;
  bool computes;  // false: the identity where one rank has the whole model
  Kept own;       // by the program's own operators
  Kept composed;  // composed of LibTorch's
};

inline constexpr std::array<OperationRow, std::variant_size_v<Operation>> operation_table{{
    {"look_up", Division::rows, true, {}, {}},
    {"norm", Division::rows, true, {.reads = 1, .statistic = true}, {.copies = 1, .wide = 2}},
    {"spread", Division::rows, false, {}, {}},
    {"linear", Division::columns, true, {.reads = 1}, {.reads = 1}},
    {"rotate", Division::heads, true, {}, {.copies = 1}},
    {"attend",
     Division::heads,
     true,
     {.reads = 7, .result = true, .statistic = true},
     {.reads = 7, .result = true}},
    {"gate", Division::columns, true, {.reads = 3}, {.reads = 3, .wide = 3}},
    {"reduce", Division::rows, false, {}, {}},
    {"add", Division::rows, true, {}, {}},
    {"add_bias", Division::rows, true, {}, {}},
    {"scale", Division::rows, true, {}, {}},
    {"activate", Division::columns, true, {.reads = 1}, {.reads = 1, .wide = 4}},
    {"scale_by_position", Division::rows, true, {}, {}},
    {"drop", Division::rows, true, {.copies = 1}, {.copies = 1}},
    {"select", Division::rows, true, {}, {}},
}};
constexpr const OperationRow& row_of(const Operation& operation) {
  return operation_table[operation.index()];
}

// 0 where the operation takes whole rows.
inline int64_t head_dim_of(const Operation& operation) {
  return std::visit(
      [](const auto& o) -> int64_t {
        if constexpr (requires { o.head_dim; }) return o.head_dim;
        return 0;
      },
      operation);
}
inline Division division_of(const Operation& operation) {
  return head_dim_of(operation) > 0 ? Division::heads : row_of(operation).division;
}

std::vector<Value> reads_of(const Operation& operation);
Value result_of(const Operation& operation);
std::optional<Role> weight_of(const Operation& operation);
std::optional<Role> bias_of(const Operation& operation);
std::vector<Role> roles_of(const Operation& operation);  // all of them

}  // namespace trireme::model
