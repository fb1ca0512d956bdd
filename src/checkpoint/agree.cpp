#include "agree.hpp"

#include "trireme/checkpoint/reader.hpp"
#include "trireme/comm/agree.hpp"

namespace trireme::checkpoint {

void agreed(const comm::CommView& comm, const std::function<void()>& work) {
  const auto failure = comm::failure_of_any(comm, work, [](const std::exception& error) {
    return dynamic_cast<const Mismatch*>(&error) ? 1 : 0;
  });
  if (!failure) return;
  if (failure->kind == 1) throw Mismatch(failure->message);
  throw UserError(failure->code, failure->message);
}

void agreed_on_root(const comm::CommView& comm, const std::function<void()>& work) {
  agreed(comm, [&] {
    if (comm.rank() == 0) work();
  });
}

}  // namespace trireme::checkpoint
