#include "torch/torch.hpp"

#include "trireme/learn/unfinished.hpp"

#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/base/wire.hpp"
#include "trireme/learn/step_plan.hpp"

namespace trireme::learn {
namespace {

// Sums over trainers; means over steps and counts are the same on all of them.
void add_sums(const UnfinishedPart& from, Learning& to) {
  to.pipeline.kl += from.pipeline.kl;
  to.pipeline.group_std += from.pipeline.group_std;
  to.pipeline.returns += from.pipeline.returns;
  to.pipeline.sequences += from.pipeline.sequences;
  to.pipeline.masked_tokens += from.pipeline.masked_tokens;
  for (const auto loss : UpdateReport::losses) to.update.*loss += from.update.*loss;
  to.update.statistics += from.update.statistics;
}

void clear_sums(Learning& learning) {
  learning.pipeline = {};
  for (const auto loss : UpdateReport::losses) learning.update.*loss = 0;
  learning.update.statistics = {};
}

}  // namespace

std::string to_stored(const report::IterationMetrics& metrics, const Learning* learning) {
  UnfinishedPart part;
  part.metrics = metrics.values;
  part.tokens = metrics.tokens;
  if (learning) {
    part.trains = true;
    part.samples = learning->experience.to_samples();
    part.mismatch = learning->mismatch;
    part.pipeline = learning->pipeline;
    part.update = learning->update;
  }
  return base::to_bytes(part);
}

Unfinished share_unfinished(const comm::CommView& world, const std::string& phase,
                            std::string_view parts) {
  Unfinished out;
  base::WireReader reader(parts, "the unfinished iteration of the checkpoint");
  while (!reader.done()) {
    auto part = reader.take<UnfinishedPart>();
    out.metrics = std::exchange(part.metrics, {});
    out.tokens = part.tokens;
    out.samples.append(std::exchange(part.samples, {}));
    if (part.trains) out.trainers.push_back(std::move(part));
  }
  out.metrics = world.broadcast_value(out.metrics, 0);
  out.tokens = world.broadcast_value(out.tokens, 0);
  out.trainers = world.broadcast_value(out.trainers, 0);
  out.phase = phase;
  return out;
}

Learning learning_of(const Unfinished& unfinished, Samples samples, int rank, int size) {
  const auto& parts = unfinished.trainers;
  VALIDATE(!parts.empty(), ExitCode::bad_data,
           "the checkpoint lies inside an iteration, but no trainer has left anything: it is of "
           "another program");
  const bool same = static_cast<int>(parts.size()) == size;
  const UnfinishedPart& mine = parts[same ? static_cast<size_t>(rank) : 0];
  Learning out{.experience = ppo::Experience::from(std::move(samples)),
               .mismatch = mine.mismatch,
               .pipeline = mine.pipeline,
               .update = mine.update};
  fill_if_empty(out.experience);
  if (same) return out;
  clear_sums(out);
  for (const UnfinishedPart& part : parts) {
    if (rank == 0) add_sums(part, out);
  }
  return out;
}

}  // namespace trireme::learn
