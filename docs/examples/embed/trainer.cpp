// Supervised fine-tuning in a program of your own: [mpirun -n N] trainer MODEL EXAMPLES RUN_FOLDER
// The deck is a text here; run_ppo, run_rm and run_dpo are called in the same way.
#include <cstdio>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/comm/session.hpp"
#include "trireme/config/deck.hpp"
#include "trireme/driver/commands.hpp"

using namespace trireme;

constexpr auto deck = R"(
[train]
batch_size = 4
[actor]
adam.lr = 1e-3
[run]
iterations = 4
)";

int main(int argc, char** argv) {
  if (argc < 4) return std::fputs("trainer MODEL EXAMPLES RUN_FOLDER\n", stderr), 64;
  driver::before_mpi();
  const comm::Session session;  // starts MPI, and ends it
  try {
    const std::vector<std::string> own = {std::string("model.path=") + argv[1],
                                          std::string("data.dataset=[\"") + argv[2] + "\"]",
                                          std::string("run.dir=") + argv[3]};
    config::Options options = config::parse_deck(deck, "trainer.cpp", own);
    options.run.name = "embedded";
    config::validate(options, config::Command::sft);
    return static_cast<int>(driver::run_sft(options, session));
  } catch (const UserError& error) {  // one rank's, or all ranks': the job ends with its code
    return session.fail(static_cast<int>(error.code()), error.what());
  }
}
