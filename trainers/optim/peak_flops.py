"""Peak rates of GPUs, with which the utilization of an update is compared."""

import torch

PEAK_BFLOAT16_FLOPS = {
    "NVIDIA A100": 312e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA L40S": 362e12,
}
"""Beginning of a GPU's name in torch -> peak rate of dense bfloat16 products [FLOP/s], from NVIDIA's data sheets. The
first name that fits counts."""


def peak_bfloat16_flops(device_name: str) -> float | None:
    """Return the peak rate of a GPU by its name in torch [FLOP/s, dense bfloat16], or None if it is not known."""
    for name, flops in PEAK_BFLOAT16_FLOPS.items():
        if device_name.startswith(name):
            return flops
    return None


def device_peak_flops(device: torch.device) -> float | None:
    """Return the peak rate of `device` [FLOP/s, dense bfloat16], or None for a processor or an unknown GPU."""
    return peak_bfloat16_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
