// A match of PCRE2 with its limits. Private to text.
#pragma once

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "trireme/base/error.hpp"

namespace trireme::text {

// Memory of PCRE2's interpreter for one match; it alone would take 20 GB.
inline constexpr uint32_t pcre2_heap_kib = 256 << 10;

class Pcre2Match {
 public:
  // Takes `data`. Throws UserError(out_of_memory) where it is null.
  explicit Pcre2Match(pcre2_match_data* data)
      : data_(data), limits_(pcre2_match_context_create(nullptr)) {
    VALIDATE(data_ != nullptr && limits_ != nullptr, ExitCode::out_of_memory,
             "no memory for a regular-expression match: give the job more memory");
    pcre2_set_heap_limit(limits_, pcre2_heap_kib);
  }
  ~Pcre2Match() {
    pcre2_match_data_free(data_);
    pcre2_match_context_free(limits_);
  }
  Pcre2Match(const Pcre2Match&) = delete;
  Pcre2Match& operator=(const Pcre2Match&) = delete;

  // The result of pcre2_match(), from byte `start` on. The stack of the JIT's code is full after
  // some thousand rounds of a group, which the interpreter keeps on the heap.
  int run(const pcre2_code* code, std::string_view text, size_t start, uint32_t options) const {
    const auto attempt = [&](uint32_t way) {
      return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), start,
                         options | way, data_, limits_);
    };
    const int found = attempt(0);
    return found == PCRE2_ERROR_JIT_STACKLIMIT ? attempt(PCRE2_NO_JIT) : found;
  }
  // Bounds of the match and of its groups, in pairs, and how many pairs.
  const size_t* bounds() const { return pcre2_get_ovector_pointer(data_); }
  uint32_t pairs() const { return pcre2_get_ovector_count(data_); }

 private:
  pcre2_match_data* data_;
  pcre2_match_context* limits_;
};

}  // namespace trireme::text
