#include "tools/prompt_feed.hpp"

#include <algorithm>
#include <string_view>

#include "tools/reading.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/hash.hpp"
#include "trireme/comm/agree.hpp"

namespace trireme::tools {

PromptSurvey survey_prompts(const std::filesystem::path& file, const text::Tokenizer& tokenizer,
                            text::SpecialTokens special, const AdapterList& adapters,
                            const config::ModelShape& model, const comm::CommView& world) {
  PromptSurvey found;
  comm::fail_together(world, [&] {
    data::InputReader lines(file);
    for (; lines.advance(); ++found.prompts) {
      if (found.prompts % world.size() != world.rank()) continue;
      const data::InputRecord record = lines.record();
      const auto ids = record.encode(tokenizer, special);
      const auto tokens = static_cast<int64_t>(ids.size());
      VALIDATE(tokens > 0, ExitCode::bad_data, record.where, ": the prompt has no token");
      VALIDATE(tokens < model.longest(), ExitCode::bad_data, record.where, ": the prompt has ",
               tokens, " tokens, the model takes ", model.longest(), ": shorten it");
      require_rows(ids, model.vocab, record.where);
      found.longest = std::max(found.longest, tokens);
      // Added up, so that the shares of the ranks make one number whatever their count.
      const std::string_view bytes(reinterpret_cast<const char*>(ids.data()),
                                   ids.size() * sizeof ids[0]);
      const auto adapter = static_cast<uint64_t>(adapters.number_of(record) + 1);
      found.digest += (base::fnv1a(bytes) + adapter) * static_cast<uint64_t>(2 * found.prompts + 1);
    }
  });
  VALIDATE(world.all(found.prompts == world.broadcast_value(found.prompts, 0)), ExitCode::bad_data,
           file.string(), " has other lines on other ranks: wait until it is the same everywhere");
  found.longest = world.max(found.longest);
  found.digest = world.sum(found.digest);
  return found;
}

std::optional<PromptFeed::Prompt> PromptFeed::next(const AnswerSet& done) {
  while (read_ < prompts_ && lines_.advance()) {
    const int64_t index = read_++;
    if (!share_.has(index) || done.has_all(index)) continue;
    const data::InputRecord record = lines_.record();
    return Prompt{index, record.encode(tokenizer_, special_), adapters_.number_of(record)};
  }
  return std::nullopt;
}

}  // namespace trireme::tools
