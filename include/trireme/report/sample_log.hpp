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

// Appends the first `count` samples in id order (-1: all) of those that lie on any rank. `sources`
// names the reward parts of the samples. Collective over world; rank 0 writes.
void append_sample_log(const comm::CommView& world, const std::filesystem::path& path,
                       const Samples& samples, const data::PromptSet& prompts,
                       const text::Tokenizer& tokenizer, int64_t iteration, int64_t count,
                       const std::vector<std::string>& sources = {});

// Forgets samples of iterations after `iteration`: a run that goes on from a checkpoint makes them
// again. The file is cut in place at the first of them, since iterations ascend in it: that takes
// no memory and no room on the disk. Local; rank 0 calls it.
void trim_sample_log(const std::filesystem::path& path, int64_t iteration);

// Flushes appended lines to the disk before a checkpoint that counts on them. Nothing where there
// is no such file. Local; rank 0 calls it.
void sync_sample_log(const std::filesystem::path& path);

}  // namespace trireme::report
