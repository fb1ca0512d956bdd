#include "driver/sample_log.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/data/jsonl.hpp"

namespace trireme::driver {

void append_sample_log(const comm::CommView& world, const std::filesystem::path& path, const Samples& samples,
                       const data::PromptSet& prompts, const data::Tokenizer& tokenizer, int64_t iteration, int64_t count) {
  // Each rank offers its first `count`; the smallest ids of all are among them.
  const int64_t offered = count < 0 ? samples.size() : std::min(count, samples.size());
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < offered; ++i) rows.push_back(i);
  const auto parts = world.gather(samples.select(rows).to_bytes(), 0);
  if (world.rank() != 0) return;
  Samples all;
  for (const auto& part : parts) {
    const Samples one = Samples::from_bytes(part);
    for (int64_t i = 0; i < one.size(); ++i) all.append(one, i);
  }
  all = all.sorted();
  std::ofstream out(path, std::ios::app);
  for (int64_t i = 0; i < all.size() && (count < 0 || i < count); ++i) {
    const auto s = static_cast<size_t>(i);
    const auto response = all.tokens_of(i).subspan(static_cast<size_t>(all.prompt_len[s]));
    data::JsonObject line;
    line.add("iteration", iteration).add("id", static_cast<int64_t>(all.id[s]));
    line.add("prompt", prompts[all.prompt_row[s]].prompt);
    line.add("response", tokenizer.decode(response, data::Skip::nothing));
    line.add("output_ids", response);
    line.add("label", prompts[all.prompt_row[s]].label);
    line.add("reward", double{all.reward[s]});
    line.add("finish_reason", to_string(all.finish_reason[s]));
    out << line.str() << '\n';
  }
  out.flush();  // else a full disk shows when nobody looks any more
  VALIDATE(out.good(), ExitCode::io_error, "cannot append to ", path.string(), ": check the file system");
}

void trim_sample_log(const std::filesystem::path& path, int64_t iteration) {
  std::ifstream in(path);
  if (!in) return;
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    // Every line begins {"iteration": N; a line that a kill cut short has no end.
    const size_t colon = line.find(':');
    const bool whole = colon != std::string::npos && line.ends_with('}');
    if (whole && std::strtoll(line.c_str() + colon + 1, nullptr, 10) <= iteration) kept += line + '\n';
  }
  in.close();
  base::write_file_atomically(path, kept);
}

}  // namespace trireme::driver
