// The prompts of `trireme generate`: read twice, and one at a time, so that their number costs no
// memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "tools/adapter_list.hpp"
#include "tools/answer_file.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/config/model_shape.hpp"
#include "trireme/data/prompt_set.hpp"
#include "trireme/text/tokenizer.hpp"

namespace trireme::tools {

// Findings of the first reading.
struct PromptSurvey {
  int64_t prompts = 0;
  int64_t longest = 0;  // tokens
  uint64_t digest = 0;  // of all tokens and adapters
};

// Checks every prompt before the first is answered, a share on each rank. Collective over `world`.
// Throws UserError(bad_data) with file:line on all ranks: a line that is none, a prompt without
// tokens or without room for an answer in the model's positions, a token without a row, a name of
// no adapter.
PromptSurvey survey_prompts(const std::filesystem::path& file, const text::Tokenizer& tokenizer,
                            text::SpecialTokens special, const AdapterList& adapters,
                            const config::ModelShape& model, const comm::CommView& world);

// The second reading, of the prompts that go to one replica: the places of a file are dealt out in
// turn, so texts do not depend on their number.
class PromptFeed {
 public:
  // Every so many-th prompt of a file, from the replica's own on.
  struct Share {
    int replica, replicas;
    bool has(int64_t index) const { return index % replicas == replica; }
  };
  // `tokenizer` and `adapters` must outlive it.
  PromptFeed(const std::filesystem::path& file, const text::Tokenizer& tokenizer,
             text::SpecialTokens special, const AdapterList& adapters, int64_t prompts, Share share)
      : lines_(file),
        tokenizer_(tokenizer),
        special_(special),
        adapters_(adapters),
        prompts_(prompts),
        share_(share) {}

  struct Prompt {
    int64_t index = 0;
    std::vector<int32_t> ids;
    int32_t adapter = -1;  // AdapterList::number_of()
  };
  // The next one that lacks an answer; nullopt: there are no more.
  std::optional<Prompt> next(const AnswerSet& done);

 private:
  data::InputReader lines_;
  const text::Tokenizer& tokenizer_;
  text::SpecialTokens special_;
  const AdapterList& adapters_;
  int64_t prompts_;
  Share share_;
  int64_t read_ = 0;
};

}  // namespace trireme::tools
