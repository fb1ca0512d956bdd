// An exchange some of whose parameters are another's: each stage is gathered by both.
#include <algorithm>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/comm/shard_exchange.hpp"

namespace trireme::comm {
namespace {

class BorrowingExchange final : public ShardExchange {
 public:
  BorrowingExchange(const CommView& comm, const std::vector<SlotGeometry>& stages,
                    ExchangeOptions options, LentParameters lent)
      : lent_(std::move(lent)) {
    std::vector<SlotGeometry> own_stages;
    for (size_t stage = 0; stage < stages.size(); ++stage) {
      SlotGeometry& own = own_stages.emplace_back();
      std::vector<Place>& places = places_.emplace_back();
      for (size_t i = 0; i < stages[stage].parameters.size(); ++i) {
        SlotParameter parameter = stages[stage].parameters[i];
        if (const auto id = lent_.id_of.at(parameter.id)) {
          places.push_back({true, lent_place(stage, *id)});
          continue;
        }
        const int64_t end = i + 1 < stages[stage].parameters.size()
                                ? stages[stage].parameters[i + 1].offset
                                : stages[stage].elements;
        places.push_back({false, own.parameters.size()});
        const int64_t offset = std::exchange(parameter.offset, own.elements);
        own.elements += end - offset;
        own.parameters.push_back(parameter);
      }
      has_own_.push_back(!own.parameters.empty());
    }
    options.rings = nullptr;  // both are gathered at a time
    own_ = make_shard_exchange(comm, std::move(own_stages), options);
  }

  std::byte* own_slice(size_t parameter) override {
    const auto id = lent_.id_of.at(parameter);
    return id ? lent_.by->own_slice(*id) : own_->own_slice(parameter);
  }
  const std::byte* whole(size_t parameter) const override {
    const auto id = lent_.id_of.at(parameter);
    return id ? lent_.by->whole(*id) : own_->whole(parameter);
  }
  // Lent parameters are frozen.
  void begin_update() override { own_->begin_update(); }
  void end_update() override { own_->end_update(); }

  void gather(int stage) override {
    lent_.by->gather(stage);
    if (has_own(stage)) own_->gather(stage);
  }
  std::vector<std::byte*> gathered(int stage) override {
    const std::vector<std::byte*> lent = lent_.by->gathered(stage),
                                  own = has_own(stage) ? own_->gathered(stage)
                                                       : std::vector<std::byte*>{};
    std::vector<std::byte*> out;
    for (const Place& place : places_[static_cast<size_t>(stage)])
      out.push_back((place.lent ? lent : own)[place.index]);
    return out;
  }
  void release(int stage) override {
    lent_.by->release(stage);
    if (has_own(stage)) own_->release(stage);
  }
  bool holds(int stage) const override {
    return lent_.by->holds(stage) && (!has_own(stage) || own_->holds(stage));
  }

  std::vector<float*> gradients(int stage) override { return own_->gradients(stage); }
  void reduce(int stage) override { own_->reduce(stage); }
  void finish_reduce(int stage, const std::vector<float*>& into) override {
    own_->finish_reduce(stage, into);
  }

  void* stream() override { return own_->stream(); }
  void join() override { own_->join(); }

  const ExchangeCounters& counters() const override { return own_->counters(); }
  std::string kind() const override { return own_->kind(); }

 private:
  struct Place {
    bool lent;
    size_t index;  // within the stage of the exchange that has it
  };
  size_t lent_place(size_t stage, size_t id) const {
    const auto& all = lent_.stages.at(stage).parameters;
    const auto found = std::ranges::find(all, id, &SlotParameter::id);
    EXPECT(found != all.end() && !found->trainable);
    return static_cast<size_t>(found - all.begin());
  }
  bool has_own(int stage) const { return has_own_[static_cast<size_t>(stage)]; }

  LentParameters lent_;
  std::vector<std::vector<Place>> places_;  // by stage and parameter
  std::vector<bool> has_own_;               // by stage
  std::unique_ptr<ShardExchange> own_;
};

}  // namespace

std::unique_ptr<ShardExchange> make_borrowing_exchange(const CommView& comm,
                                                       const std::vector<SlotGeometry>& stages,
                                                       const ExchangeOptions& options,
                                                       LentParameters lent) {
  return std::make_unique<BorrowingExchange>(comm, stages, options, std::move(lent));
}

}  // namespace trireme::comm
