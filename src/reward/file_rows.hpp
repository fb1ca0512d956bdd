// Rows of prompt sets by the file that they come from.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/data/prompt_set.hpp"

namespace trireme::reward {

using Sets = std::span<const data::PromptSet* const>;

// Those of one file are next to each other.
struct FileRows {
  const data::PromptSet* set;
  std::string file;
  int64_t first, end;
};

inline std::vector<FileRows> files_of(Sets sets) {
  std::vector<FileRows> files;
  for (const data::PromptSet* set : sets) {
    for (int64_t row = 0; row < set->size(); ++row) {
      const int32_t number = (*set)[row].origin.file;
      if (row == 0 || number != (*set)[row - 1].origin.file)
        files.push_back({set, set->file(number), row, row});
      files.back().end = row + 1;
    }
  }
  return files;
}

}  // namespace trireme::reward
