#include "torch/torch.hpp"

#include "trireme/reward/model_source.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/log.hpp"
#include "trireme/learn/scoring.hpp"
#include "trireme/model/model_files.hpp"
#include "trireme/text/tokenizer.hpp"
#include "trireme/trace/region.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::reward {
namespace {

using Sequence = std::vector<int32_t>;

bool same_tokenizer(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code error;
  if (std::filesystem::equivalent(a, b, error)) return true;
  const auto json_a = a / "tokenizer.json", json_b = b / "tokenizer.json";
  if (!std::filesystem::exists(json_a, error) || !std::filesystem::exists(json_b, error))
    return false;
  return base::read_file(json_a) == base::read_file(json_b);
}

// The reward model's own reading of a request.
class Reencoder {
 public:
  explicit Reencoder(const std::filesystem::path& folder)
      : tokenizer_(text::Tokenizer::load(folder)) {}

  Sequence encode(const Request& request) const {
    if (!request.messages.empty() && tokenizer_.has_chat_template()) {
      return tokenizer_.encode_chat(conversation(request), text::GenerationPrompt::without);
    }
    return tokenizer_.encode(request.prompt + request.response, text::SpecialTokens::added);
  }

 private:
  // The prompt's turns and the response as the assistant's.
  static std::vector<text::Message> conversation(const Request& request) {
    const auto json = nlohmann::json::parse(request.messages, nullptr, false);
    VALIDATE(json.is_array(), ExitCode::bad_data, "the messages of request ", request.id,
             " are no JSON array");
    std::vector<text::Message> out;
    for (const auto& turn : json) {
      const bool complete = turn.is_object() && turn.contains("role") && turn["role"].is_string() &&
                            turn.contains("content") && turn["content"].is_string();
      VALIDATE(complete, ExitCode::bad_data, "a message of request ", request.id,
               " has no role and content text");
      auto extra = turn;
      extra.erase("role");
      extra.erase("content");
      out.push_back({turn["role"].get<std::string>(), turn["content"].get<std::string>(),
                     extra.empty() ? "" : extra.dump()});
    }
    out.push_back({"assistant", request.response, ""});
    return out;
  }

  text::Tokenizer tokenizer_;
};

zero::ShardedModel load_model(const std::string& name, const std::filesystem::path& path,
                              const model::ModelFolder& folder,
                              const ModelEnvironment& environment) {
  const model::ModelSpec spec = model::describe(folder.shape, model::HeadKind::score);
  zero::ShardedModelOptions options;
  options.name = name;
  options.compute = environment.dtype;
  options.training = zero::Training::frozen;
  options.node_weights = environment.node_weights;
  options.rings = environment.rings;
  zero::ShardedModel out(spec, environment.ranks.shard, environment.ranks.copies,
                         environment.device, options);
  out.load([&](size_t parameter, const base::Block& block, float* values) {
    model::load_parameter(spec, parameter, block, *folder.weights, 0, values);
  });
  if (environment.ranks.all.rank() == 0) {
    log::info(base::text("reward model ", name, ": ", path.string(), ", ", spec.elements(),
                         " parameters on ", environment.ranks.all.size(), " ranks"));
  }
  return out;
}

model::ModelFolder open_reward_model(const std::string& name, const std::filesystem::path& path,
                                     bool normalize) {
  model::ModelFolder out = model::open_model(path);
  VALIDATE(out.shape.score_head, ExitCode::bad_data, "reward source ", name, ": ", path.string(),
           " is a language model (its config.json names no ...ForSequenceClassification): give a "
           "reward model, e.g. one that trireme rm wrote");
  VALIDATE(!normalize || (out.shape.score_mean && out.shape.score_std && *out.shape.score_std > 0),
           ExitCode::bad_data, "reward source ", name, ": reward.normalize_enable, but ",
           path.string(), "/config.json has no mean and positive std: add them, or switch it off");
  model::warn_unexpected(
      model::check_weights(model::describe(out.shape, model::HeadKind::score), *out.weights),
      *out.weights);
  return out;
}

class ModelSource : public Source {
 public:
  ModelSource(const config::RewardSource& options, std::string name,
              const ModelEnvironment& environment)
      : name_(std::move(name)),
        environment_(environment),
        folder_(open_reward_model(name_, options.path, environment.normalize)),
        max_len_(options.max_len > 0 ? options.max_len : environment.max_len),
        batch_tokens_(options.batch_tokens > 0 ? options.batch_tokens : environment.batch_tokens),
        model_(load_model(name_, options.path, folder_, environment)) {
    if (!environment.policy_tokenizer.empty() &&
        !same_tokenizer(environment.policy_tokenizer, folder_.path)) {
      reencoder_.emplace(folder_.path);
      if (environment.ranks.all.rank() == 0) {
        log::info(base::text("reward source ", name_,
                             ": another tokenizer than the policy's, texts are encoded again"));
      }
    }
    const auto& shape = folder_.shape;
    if (environment.normalize) scale_ = {*shape.score_mean, *shape.score_std};
    folder_.weights.reset();
  }

  const std::string& name() const override { return name_; }
  bool collective() const override { return true; }
  int64_t weight_bytes() const override { return model_.memory().weights; }

  Scores score(std::span<const Request> requests) override {
    const trace::Region region{"reward model"};
    return {learn::sequence_scores(model_, encode(requests), environment_.ranks.all, batch_tokens_,
                                   scale_, environment_.device, environment_.between),
            {}};
  }

 private:
  std::vector<Sequence> encode(std::span<const Request> requests) {
    std::vector<Sequence> out;
    int64_t cut = 0;
    for (const Request& request : requests) {
      Sequence ids = reencoder_ ? reencoder_->encode(request) : request.ids;
      VALIDATE(!ids.empty(), ExitCode::bad_data, "reward source ", name_, ": request ", request.id,
               " is empty");
      const auto length = static_cast<int64_t>(ids.size());
      if (length > max_len_) {
        ids.erase(ids.begin(), ids.end() - max_len_);
        ++cut;
      }
      out.push_back(std::move(ids));
    }
    if (cut > 0)
      log::warning(base::text("reward source ", name_, ": ", cut, " of ", requests.size(),
                              " sequences longer than ", max_len_,
                              " tokens lost their first ones (reward.source.max_len)"));
    return out;
  }

  std::string name_;
  ModelEnvironment environment_;
  model::ModelFolder folder_;
  int64_t max_len_;
  int64_t batch_tokens_;
  zero::ShardedModel model_;
  std::optional<Reencoder> reencoder_;
  learn::ScoreScale scale_;
};

}  // namespace

void check_model(const config::RewardSource& options, const std::string& name, bool normalize,
                 const std::filesystem::path& policy_tokenizer) {
  const model::ModelFolder folder = open_reward_model(name, options.path, normalize);
  if (!policy_tokenizer.empty() && !same_tokenizer(policy_tokenizer, folder.path))
    text::Tokenizer::load(folder.path);
}

std::unique_ptr<Source> make_model(const config::RewardSource& options, std::string name,
                                   const ModelEnvironment& environment) {
  return std::make_unique<ModelSource>(options, std::move(name), environment);
}

}  // namespace trireme::reward
