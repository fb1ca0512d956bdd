#include "trireme/text/stops.hpp"

#include <algorithm>
#include <memory>

#include "trireme/base/error.hpp"

namespace trireme::text {

std::function<bool(int32_t)> stop_string_predicate(const Tokenizer& tokenizer,
                                                   const std::vector<std::string>& strings) {
  if (strings.empty()) return {};
  size_t longest = 0;
  for (const auto& text : strings) longest = std::max(longest, text.size());
  // Shared by the copies that std::function makes; one predicate serves one request.
  struct State {
    StreamingDecoder decoder;
    std::string tail;
  };
  auto state = std::make_shared<State>(State{StreamingDecoder(tokenizer, Skip::nothing), {}});
  return [state, strings, longest](int32_t token) {
    const std::string piece = state->decoder.push(token);
    const size_t before = state->tail.size();
    state->tail += piece;
    // Only a text that ends in this piece is new: an earlier one may have come while the answer was
    // not yet allowed to end.
    const bool found =
        !piece.empty() && std::any_of(strings.begin(), strings.end(), [&](const std::string& text) {
          return state->tail.find(text, before + 1 > text.size() ? before + 1 - text.size() : 0) !=
                 std::string::npos;
        });
    if (state->tail.size() > longest) state->tail.erase(0, state->tail.size() - longest);
    return found;
  };
}

Stops stops_of(const Tokenizer& tokenizer, bool ignore_eos, const std::vector<int64_t>& ids,
               const std::vector<std::string>& strings, int64_t vocabulary,
               const std::string& key) {
  Stops stops;
  if (!ignore_eos) stops.ids.assign(tokenizer.eos_ids().begin(), tokenizer.eos_ids().end());
  for (const int64_t id : ids) {
    VALIDATE(id >= 0 && id < vocabulary, ExitCode::configuration, key, " has ", id,
             ", the model's vocabulary has ", vocabulary,
             " tokens (such a token never comes): correct or remove it");
    stops.ids.push_back(static_cast<int32_t>(id));
  }
  for (const std::string& text : strings) {
    const auto id = tokenizer.token_to_id(text);
    if (id && tokenizer.is_special(*id) && *id < vocabulary) {
      stops.ids.push_back(*id);
    } else if (!text.empty()) {
      stops.strings.push_back(text);
    }
  }
  std::sort(stops.ids.begin(), stops.ids.end());
  stops.ids.erase(std::unique(stops.ids.begin(), stops.ids.end()), stops.ids.end());
  return stops;
}

}  // namespace trireme::text
