// samples.jsonl: prompts, answers and rewards of some samples of each iteration, for people.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trireme/base/samples.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::report {

struct SampleLog {
  std::filesystem::path path;
  const data::PromptSet& prompts;
  const text::Tokenizer& tokenizer;
  int64_t count = -1;                     // samples of an iteration; -1: all
  std::vector<std::string> sources = {};  // names of the samples' reward parts
};
// Appends the first samples in id order of those that lie on any rank. Collective over world; rank
// 0 writes.
void append_sample_log(const comm::CommView& world, const SampleLog& log, const Samples& samples,
                       int64_t iteration);

// Forgets samples of iterations after `iteration`: a run that goes on from a checkpoint makes them
// again. The file is cut in place at the first of them, since iterations ascend in it: that takes
// no memory and no room on the disk. Local; rank 0 calls it.
void trim_sample_log(const std::filesystem::path& path, int64_t iteration);

// Flushes appended lines to the disk before a checkpoint that counts on them. Nothing where there
// is no such file. Local; rank 0 calls it.
void sync_sample_log(const std::filesystem::path& path);

}  // namespace trireme::report
