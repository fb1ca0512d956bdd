#include "trireme/comm/agree.hpp"

#include <vector>

#include "trireme/base/allocation.hpp"
#include "trireme/base/files.hpp"
#include "trireme/trace/region.hpp"

namespace trireme::comm {
namespace {

ExitCode code_of(const std::exception& error) {
  if (const auto* user = dynamic_cast<const UserError*>(&error)) return user->code();
  if (const auto code = base::file_error_code(error)) return *code;
  return base::failed_allocation(error) ? ExitCode::out_of_memory : ExitCode::internal;
}

}  // namespace

std::optional<AgreedFailure> failure_of_any(
    const CommView& ranks, const std::function<void()>& work,
    const std::function<int(const std::exception&)>& kind_of) {
  struct Verdict {
    int32_t code = 0;
    int32_t kind = 0;
  } mine;
  std::string message;
  try {
    work();
  } catch (const std::exception& error) {
    mine = {static_cast<int32_t>(code_of(error)), kind_of ? kind_of(error) : 0};
    const auto memory = base::failed_allocation(error);
    message = memory ? base::describe(*memory, trace::where_it_failed()) : error.what();
  }
  const std::vector<Verdict> all = ranks.sleeping_gather_values(mine);
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const Verdict verdict = all[static_cast<size_t>(rank)];
    if (verdict.code == 0) continue;
    message = ranks.broadcast(std::move(message), rank);
    if (ranks.size() > 1) message = base::text("rank ", rank, ": ", message);
    return AgreedFailure{rank, static_cast<ExitCode>(verdict.code), verdict.kind, message};
  }
  return std::nullopt;
}

void fail_together(const CommView& ranks, const std::function<void()>& work) {
  if (const auto failure = failure_of_any(ranks, work))
    throw UserError(failure->code, failure->message);
}

void fail_together_on_root(const CommView& ranks, const std::function<void()>& work) {
  fail_together(ranks, [&] {
    if (ranks.rank() == 0) work();
  });
}

}  // namespace trireme::comm
