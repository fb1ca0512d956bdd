#include "trireme/base/text.hpp"
#include "trireme/reward/reward.hpp"

namespace trireme::reward {

std::string described(const Request& request) {
  return request.where.empty() ? base::text("request ", request.id)
                               : base::text("the prompt of ", request.where);
}

Request request_for(const data::PromptSet& prompts, int64_t row) {
  const data::PromptRecord& prompt = prompts[row];
  Request request;
  request.prompt = prompt.prompt;
  request.messages = prompt.messages;
  request.variables = prompt.variables;
  add_label(prompts, row, request);
  request.where = prompts.where(row);
  return request;
}

void add_label(const data::PromptSet& prompts, int64_t row, Request& request) {
  const data::PromptRecord& prompt = prompts[row];
  request.label = prompt.label;
  if (!prompt.label_json.starts_with('"')) request.label_json = prompt.label_json;
  request.extra = prompt.extra;
}

}  // namespace trireme::reward
