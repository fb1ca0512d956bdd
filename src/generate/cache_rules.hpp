// A model's rules for the pages of its sequences.
#pragma once

#include <cstdint>

#include "page_pool.hpp"
#include "trireme/model/spec.hpp"

namespace trireme::generate {

struct CacheRules {
  // Every layer sees so many last tokens at most, so that pages before them are given back; 0: all
  // are seen.
  int64_t window = 0;
  // Sequences up to this length are rotated alike (model::Rotation); longer ones too, or each
  // length otherwise. A sequence that gets another rotation is computed anew.
  int64_t rotated_alike = INT64_MAX;
  bool each_length = false;

  ContentId rotation_of(int64_t length) const {
    return length <= rotated_alike ? 0
           : each_length           ? static_cast<ContentId>(length - rotated_alike)
                                   : 1;
  }
  // Tokens that a sequence can get before it is rotated otherwise.
  int64_t alike_from(int64_t length) const {
    if (length <= rotated_alike) return rotated_alike - length;
    return each_length ? 0 : INT64_MAX;
  }
};

CacheRules cache_rules(const model::ModelSpec& spec);

}  // namespace trireme::generate
