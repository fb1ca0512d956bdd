// What models compute with, and how their weights lie in memory: one type for all modules. What files and messages may hold besides is theirs
// (model::StoredType, comm::DType). Each place that translates it is a `switch` over all of them: a new one does not pass for another.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trireme::base {

enum class ElementType : uint8_t { f32, bf16 };

constexpr size_t size_of(ElementType type) {
  switch (type) {
    case ElementType::f32: return 4;
    case ElementType::bf16: return 2;
  }
  return 0;
}

}  // namespace trireme::base
