"""Read an exported configuration as `accelerate launch` does; print, as JSON, what a process would get."""

import json
import os
import sys

from accelerate import FullyShardedDataParallelPlugin, ParallelismConfig
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env


def main(path):
    config = load_config_from_file(path)
    parsed = launch_command_parser().parse_args(
        ["--config_file", path, "--main_process_ip", "localhost", "train.py"]
    )
    arguments, _, _ = _validate_launch_command(parsed)
    os.environ.update(prepare_multi_gpu_env(arguments))
    mesh, plugin = ParallelismConfig(), FullyShardedDataParallelPlugin()
    plugin.set_mixed_precision(arguments.mixed_precision)  # as Accelerator does
    print(
        json.dumps(
            {
                "processes": config.num_processes,
                "machines": arguments.num_machines,
                "mixed_precision": arguments.mixed_precision,
                "mesh": [mesh.dp_replicate_size, mesh.dp_shard_size, mesh.cp_size, mesh.tp_size],
                "size": mesh.total_size,
                "fsdp_version": plugin.fsdp_version,
                "reduces": str(plugin.mixed_precision_policy.reduce_dtype),
                "reshard": plugin.reshard_after_forward,
                "checkpointing": plugin.activation_checkpointing,
                "offload": type(plugin.cpu_offload).__name__,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
