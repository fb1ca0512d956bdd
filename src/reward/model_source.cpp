#include "torch/torch.hpp"

#include "trireme/reward/model_source.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>

#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/learn/scoring.hpp"
#include "trireme/model/adapter_files.hpp"
#include "trireme/model/model_files.hpp"
#include "trireme/reward/reading.hpp"
#include "trireme/trace/region.hpp"
#include "trireme/zero/sharded_model.hpp"

namespace trireme::reward {
namespace {

using Sequence = std::vector<int32_t>;

// A reward model's folder, and the model: an adapter's beside the weights of its base.
struct RewardFolder {
  model::ModelFolder folder;
  model::ModelSpec spec;
};

zero::ShardedModel load_model(const std::string& name, const std::filesystem::path& path,
                              const RewardFolder& reward, const ModelEnvironment& environment) {
  const model::ModelSpec spec = model::frozen(reward.spec);
  zero::ShardedModelOptions options;
  options.name = name;
  options.compute = environment.dtype;
  options.node_weights = environment.node_weights;
  options.rings = environment.ranks.rings;
  if (environment.trained != nullptr && model::is_adapter_on(path, environment.trained_path)) {
    model::require_shared_base(spec, path, environment.trained->spec());
    options.base = environment.trained;
  }
  zero::ShardedModel out(spec, environment.ranks.shard, environment.ranks.copies,
                         environment.device, options);
  out.load([&](size_t parameter, const base::Block& block, float* values) {
    model::load_parameter(spec, parameter, block, *reward.folder.weights, 0, values);
  });
  if (environment.ranks.all.rank() == 0) {
    log::info(base::text("reward model ", name, ": ", path.string(), ", ", spec.elements(),
                         " parameters on ", environment.ranks.all.size(), " ranks",
                         options.base ? ", its base is the actor's" : ""));
  }
  return out;
}

RewardFolder open_reward_model(const std::string& name, const std::filesystem::path& path,
                               bool normalize) {
  RewardFolder reward;
  model::ModelFolder& out = reward.folder;
  if (model::is_adapter(path)) {
    std::tie(out, reward.spec) = model::open_beside_base(path);
  } else {
    out = model::open_model(path);
    reward.spec = model::describe(out.shape, model::HeadKind::score);
  }
  VALIDATE(out.shape.score_head, ExitCode::bad_data, "reward source ", name, ": ", path.string(),
           " is a language model (its config.json names no ...ForSequenceClassification): give a "
           "reward model, e.g. one that trireme rm wrote");
  VALIDATE(!normalize || (out.shape.score_mean && out.shape.score_std && *out.shape.score_std > 0),
           ExitCode::bad_data, "reward source ", name, ": reward.normalize_enable, but ",
           path.string(), "/config.json has no mean and positive std: add them, or switch it off");
  const bool brings_head = std::ranges::any_of(reward.spec.parameters, [](const auto& parameter) {
    return parameter.role == model::adapter_role(model::Role::score, model::Part::saved);
  });
  const auto allowed = brings_head ? model::Missing::score_head : model::Missing::nothing;
  model::warn_unexpected(model::check_weights(reward.spec, *out.weights, allowed), *out.weights);
  return reward;
}

text::Tokenizer own_tokenizer(const model::ModelFolder& folder) {
  auto tokenizer = text::Tokenizer::load(model::tokenizer_folder(folder.path));
  tokenizer.check_model(folder.shape.vocab);
  return tokenizer;
}

std::optional<Reading> make_reading(const std::string& name, const model::ModelFolder& folder,
                                    const ModelEnvironment& environment) {
  if (!environment.policy_tokenizer) return std::nullopt;
  return Reading(own_tokenizer(folder), *environment.policy_tokenizer, folder.shape.vocab, name);
}

int64_t longest(int64_t of_source, int64_t of_run, int64_t positions) {
  return of_source > 0 ? of_source : of_run > 0 ? of_run : positions;
}

class ModelSource : public Source {
 public:
  ModelSource(const config::RewardSource& options, std::string name,
              const ModelEnvironment& environment)
      : name_(std::move(name)),
        environment_(environment),
        reward_(open_reward_model(name_, options.path, environment.normalize)),
        reading_(make_reading(name_, reward_.folder, environment)),
        max_len_(longest(options.max_len, environment.max_len, reward_.folder.shape.longest())),
        batch_tokens_(options.batch_tokens > 0 ? options.batch_tokens : environment.batch_tokens),
        model_(load_model(name_, options.path, reward_, environment)) {
    const auto& shape = reward_.folder.shape;
    if (environment.normalize) scale_ = {*shape.score_mean, *shape.score_std};
    reward_.folder.weights.reset();
  }

  const std::string& name() const override { return name_; }
  bool collective() const override { return true; }
  int64_t weight_bytes() const override { return model_.memory().weights; }

  Scores score(std::span<const Request> requests) override {
    const trace::Region region{"reward model"};
    auto values =
        learn::sequence_scores(model_, encode(requests),
                               {{environment_.ranks.all, environment_.progress, comm::May::leave},
                                batch_tokens_,
                                environment_.device},
                               scale_);
    if (!values) return {.left = true};
    return {.values = std::move(*values)};
  }

 private:
  std::vector<Sequence> encode(std::span<const Request> requests) {
    std::vector<Sequence> out;
    int64_t cut = 0;
    for (const Request& request : requests) {
      Sequence ids = read(request);
      VALIDATE(!ids.empty(), ExitCode::bad_data, "reward source ", name_, ": ", described(request),
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

  Sequence read(const Request& request) {
    if (!reading_) return request.ids;
    ReadTokens tokens = reading_->read(request);
    if (!request.encoded) say(tokens.how);
    return std::move(tokens.ids);
  }

  // Each once.
  void say(ReadAs how) {
    if (how == ReadAs::written || !said_.insert(how).second || environment_.ranks.all.rank() != 0)
      return;
    log::info(base::text("reward source ", name_,
                         how == ReadAs::encoded_again
                             ? ": its tokenizer or chat template is not the policy's, so texts are "
                               "encoded again by its own"
                             : ": it has no chat template, so chats are read as the policy's "
                               "template renders them"));
  }

  std::string name_;
  ModelEnvironment environment_;
  RewardFolder reward_;
  std::optional<Reading> reading_;
  int64_t max_len_;
  int64_t batch_tokens_;
  zero::ShardedModel model_;
  std::set<ReadAs> said_;
  learn::ScoreScale scale_;
};

}  // namespace

void check_model(const config::RewardSource& options, const std::string& name, bool normalize) {
  own_tokenizer(open_reward_model(name, options.path, normalize).folder);
}

std::unique_ptr<Source> make_model(const config::RewardSource& options, std::string name,
                                   const ModelEnvironment& environment) {
  return std::make_unique<ModelSource>(options, std::move(name), environment);
}

}  // namespace trireme::reward
