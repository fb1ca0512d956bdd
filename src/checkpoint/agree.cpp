#include "trireme/checkpoint/agree.hpp"

#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/checkpoint/reader.hpp"

namespace trireme::checkpoint {
namespace {

struct Outcome {
  int code = 0;
  std::string message;
  bool mismatch = false;
};

// What travels of it: the code, and whether it is a Mismatch.
constexpr int32_t mismatch_bit = 1 << 16;

Outcome outcome_of(const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (const Mismatch& error) {
    return {static_cast<int>(error.code()), error.what(), true};
  } catch (const UserError& error) {
    return {static_cast<int>(error.code()), error.what()};
  } catch (const std::filesystem::filesystem_error& error) {
    const bool denied = error.code() == std::errc::permission_denied;
    return {static_cast<int>(denied ? ExitCode::permission : ExitCode::io_error), error.what()};
  } catch (const std::bad_alloc&) {
    return {static_cast<int>(ExitCode::out_of_memory), "out of memory in a checkpoint"};
  } catch (const std::exception& error) {
    return {static_cast<int>(ExitCode::internal), error.what()};
  }
}

}  // namespace

void agreed(const comm::CommView& comm, const std::function<void()>& work) {
  Outcome mine = outcome_of(work);
  const std::vector<int32_t> codes = comm.gather_values<int32_t>(mine.code | (mine.mismatch ? mismatch_bit : 0));
  for (int rank = 0; rank < comm.size(); ++rank) {
    const int32_t code = codes[static_cast<size_t>(rank)];
    if (code == 0) continue;
    std::string message = comm.broadcast(std::move(mine.message), rank);
    if (comm.size() > 1) message = base::text("rank ", rank, ": ", message);
    if ((code & mismatch_bit) != 0) throw Mismatch(message);
    throw UserError(static_cast<ExitCode>(code), message);
  }
}

void agreed_on_root(const comm::CommView& comm, const std::function<void()>& work) {
  agreed(comm, [&] {
    if (comm.rank() == 0) work();
  });
}

}  // namespace trireme::checkpoint
