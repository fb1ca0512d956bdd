// A request on its way through the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "draw.hpp"
#include "page_pool.hpp"
#include "trireme/generate/request.hpp"

namespace trireme::generate {

struct PromptGroup;

struct Sequence {
  Request request;
  Result result;
  std::vector<int32_t> tokens;  // prompt and output
  int64_t longest = 0;          // tokens that it can have
  int64_t guesses =
      0;  // that are worth computing: more where they were right, fewer where they were wrong
  // Of the cache, positions from 0 on; `no_page` where a window has passed them.
  std::vector<int32_t> pages;
  int64_t computed = 0;         // tokens whose keys and values lie in the pages
  bool old_keys = false;        // some were computed with older weights: nobody else may find them
  int64_t published_pages = 0;  // full pages that are in the index (or equal one that is)
  ContentId published = 0;      // content up to there
  ContentId rotation = 0;       // of the computed tokens (CacheRules)
  KeptLogits prompt_logits;  // of a sequence that began from a group's pages, until its first draw
  std::shared_ptr<PromptGroup> group;  // of equal prompts; null once this sequence has begun

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t prompt_length() const { return static_cast<int64_t>(request.prompt.size()); }
  // Of the turn that is being written.
  int64_t turn_tokens() const {
    return static_cast<int64_t>(result.output_ids.size()) - request.turn_begin;
  }
  // Tokens to compute before the next one can be drawn: one when decoding.
  int64_t pending() const { return length() - computed; }
  bool decoding() const { return pending() == 1 && computed >= prompt_length(); }
  void forget_computed() {
    computed = published_pages = 0;
    published = 0;
  }
};

// Requests with one prompt and adapter (the n samples of a prompt): the first computes it, the
// others start from its pages.
struct PromptGroup {
  std::vector<int32_t> prompt;
  int32_t adapter = -1;
  int64_t waiting = 0;               // members that have not begun
  const Sequence* leader = nullptr;  // computes the prompt now
  std::vector<int32_t>
      pages;  // of the whole prompt, one reference each; empty until it is computed
  int64_t published_pages = 0;  // as in Sequence
  ContentId published = 0;
  KeptLogits logits;  // after the last prompt token

  bool ready() const { return !pages.empty(); }
};

}  // namespace trireme::generate
