// The type in which models compute and their weights lie in memory: one type for all modules. What
// files and messages may hold besides is theirs (model::StoredType, comm::DType). Kernels have two
// forms and choose by `== f32`: whoever adds a type goes through these.
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
