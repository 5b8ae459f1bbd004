"""The boot sector of the guest that KVM is tested with: it takes the path of every machine's boot loader and kernel.

Firmware loads it in real mode. It enters protected mode without paging, where boot loaders live, takes an interrupt
there and returns from it, enters 64-bit mode with paging, where kernels live, and leaves through QEMU's exit port. On
some hosts, KVM has been seen to run the firmware and the boot sector, and to fail at the first interrupt in protected
mode.

Layout: code from 0x7c00; the interrupt table at 0x1000, page tables at 0x2000, 0x3000 and 0x4000.
"""

from __future__ import annotations

from typing import Final

EXIT_PORT: Final = 0xF4
EXIT_STATUS: Final = 0x2A << 1 | 1
"""The exit status of QEMU with isa-debug-exit when the guest writes the value 0x2a."""

_CODE: Final = (
    # 16 bit, at 0x7c00
    "fa",  # cli
    "31 c0  8e d8",  # xor ax, ax; mov ds, ax
    "66 0f 01 16 de 7c",  # lgdt [0x7cde]
    "0f 20 c0  0c 01  0f 22 c0",  # cr0 |= protected mode
    "ea 18 7c 08 00",  # jmp 0x08:0x7c18
    # 32 bit, at 0x7c18
    "66 b8 10 00  8e d8  8e d0",  # mov ax, 0x10; mov ds, ax; mov ss, ax
    "bc 00 7c 00 00",  # mov esp, 0x7c00
    "b8 00 00 08 00  05 bd 7c 00 00",  # mov eax, 0x08 << 16; add eax, 0x7cbd
    "a3 00 11 00 00",  # mov [0x1100], eax: the gate of interrupt 0x20, its lower half
    "c7 05 04 11 00 00 00 8e 00 00",  # mov dword [0x1104], 0x8e00: present, an interrupt gate
    "0f 01 1d e4 7c 00 00",  # lidt [0x7ce4]
    "cd 20",  # int 0x20
    "c7 05 00 20 00 00 03 30 00 00",  # mov dword [0x2000], 0x3003: three levels of page tables,
    "c7 05 04 20 00 00 00 00 00 00",
    "c7 05 00 30 00 00 03 40 00 00",  # mov dword [0x3000], 0x4003
    "c7 05 04 30 00 00 00 00 00 00",
    "c7 05 00 40 00 00 83 00 00 00",  # mov dword [0x4000], 0x83: the first 2 MiB as they are
    "c7 05 04 40 00 00 00 00 00 00",
    "b8 00 20 00 00  0f 22 d8",  # cr3 = 0x2000
    "b8 20 00 00 00  0f 22 e0",  # cr4 = physical address extension
    "b9 80 00 00 c0  0f 32  0d 00 01 00 00  0f 30",  # efer |= long mode
    "0f 20 c0  0d 00 00 00 80  0f 22 c0",  # cr0 |= paging
    "ea b3 7c 00 00 18 00",  # jmp 0x18:0x7cb3
    # 64 bit, at 0x7cb3
    "66 ba f4 00  b0 2a  ee",  # mov dx, EXIT_PORT; mov al, 0x2a; out dx, al
    "f4  eb fd",  # hlt, for ever
    # 32 bit, at 0x7cbd: the handler of interrupt 0x20
    "cf",  # iret
    # at 0x7cbe: segments: none, 32-bit code, data, 64-bit code
    "00 00 00 00 00 00 00 00",
    "ff ff 00 00 00 9a cf 00",
    "ff ff 00 00 00 92 cf 00",
    "ff ff 00 00 00 9a af 00",
    "1f 00  be 7c 00 00",  # at 0x7cde: the segments' last byte, and where they are
    "07 01  00 10 00 00",  # at 0x7ce4: the interrupt table's, of 33 gates
)

BOOT_SECTOR: Final = bytes.fromhex(" ".join(_CODE)).ljust(510, b"\0") + b"\x55\xaa"
