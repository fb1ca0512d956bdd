// Values that operations read and write, by the names of their members.
#include "trireme/model/operations.hpp"

namespace trireme::model {

std::vector<Value> reads_of(const Operation& operation) {
  return std::visit(
      [](const auto& o) -> std::vector<Value> {
        if constexpr (requires { o.q; }) {
          return {o.q, o.k, o.v};
        } else if constexpr (requires { o.other; }) {
          return {o.in, o.other};
        } else if constexpr (requires { o.in; }) {
          return {o.in};
        } else if constexpr (requires { o.value; }) {
          return {o.value};
        } else {
          return {};
        }
      },
      operation);
}

Value result_of(const Operation& operation) {
  return std::visit(
      [](const auto& o) {
        if constexpr (requires { o.out; }) {
          return o.out;
        } else {
          return o.value;
        }
      },
      operation);
}

std::optional<Role> weight_of(const Operation& operation) {
  return std::visit(
      [](const auto& o) -> std::optional<Role> {
        if constexpr (requires { o.weight; }) return o.weight;
        return std::nullopt;
      },
      operation);
}

std::optional<Role> bias_of(const Operation& operation) {
  return std::visit(
      [](const auto& o) -> std::optional<Role> {
        if constexpr (requires { o.bias; }) return o.bias;
        return std::nullopt;
      },
      operation);
}

std::vector<Role> roles_of(const Operation& operation) {
  if (const auto* activate = std::get_if<Activate>(&operation))
    return {activate->weights.begin(), activate->weights.end()};
  std::vector<Role> out;
  for (const auto& role : {weight_of(operation), bias_of(operation)}) {
    if (role) out.push_back(*role);
  }
  return out;
}

}  // namespace trireme::model
